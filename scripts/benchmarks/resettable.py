"""Classes for `scripts/bench reuse`; their setup does nothing, and their trials report once."""

from collections.abc import Mapping
from typing import Any

import studydb
from benchmarks.space import METRIC, loss


class New(studydb.Trainable):
    """A class that does not define `reset_config`, so that each trial gets a new process."""

    def step(self) -> Mapping[str, Any]:
        return {METRIC: loss(self.config["momentum"], 1), "done": True}


class Reused(New):
    """A class that defines `reset_config`, so that its process runs one trial after another."""

    def reset_config(self, config: dict[str, Any]) -> bool:
        del config
        return True
