"""Classes for `scripts/bench reuse`: no imports, an immediate setup, one report per trial."""

from collections.abc import Mapping
from typing import Any

import studydb
from benchmarks.space import METRIC, loss


class New(studydb.Trainable):
    """Its `reset_config` returns False, so that each trial gets a new process."""

    def step(self) -> Mapping[str, Any]:
        return {METRIC: loss(self.config["momentum"], 1), "done": True}


class Reused(New):
    """Its process runs one trial after another."""

    def reset_config(self, config: dict[str, Any]) -> bool:
        del config
        return True
