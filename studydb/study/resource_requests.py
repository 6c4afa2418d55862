"""The methods of a study by which people say what trials need."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from studydb.domain.records import Study as Record
from studydb.domain.resources import read_resources
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations.set_resources import set_resources


class ResourceRequests:
    """What `Study` inherits."""

    record: Record
    number_of: Callable[[int | str], int]
    _ask_once: Callable[..., Any]

    @suggesting_keywords
    def set_resources(self, resources: Mapping[str, float] | str, *numbers: int | str) -> None:
        """
        Change what these trials (numbers or names) need; without them, what the study's trials do.

        A RUNNING trial keeps what it has; its next attempt asks for the new amounts. Trials with a
        request of their own keep it if the study's request changes.

        Args:
            resources: Such as {"gpus": 1, "memory_gb": 8} or "gpus=1"; {} for nothing.

        Raises:
            UnknownTrial: A trial does not exist; nothing was changed.
            NotAllowed: A trial runs or has ended; nothing was changed.
            InvalidSpec: The request cannot be read, or the study has 64 other requests already.
        """
        asked = read_resources("resources", resources)
        chosen = [self.number_of(each) for each in numbers]
        self._ask_once(set_resources, asked, chosen)
        if not chosen:
            self.record = dataclasses.replace(self.record, resources=asked)
