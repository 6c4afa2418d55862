"""The methods of a study by which people say what trials need."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from studydb.domain.arguments import integer
from studydb.domain.records import Study as Record
from studydb.domain.resources import read_resources, read_resources_or_none
from studydb.domain.text.names import check_tags, check_trial_name
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations.enqueue import enqueue
from studydb.operations.set_resources import set_resources


class ResourceRequests:
    """What `Study` inherits."""

    record: Record
    number_of: Callable[[int | str], int]
    _ask_once: Callable[..., Any]

    @suggesting_keywords
    def enqueue(
        self,
        params: Mapping[str, Any],
        *,
        priority: int = 0,
        name: str | None = None,
        tags: Iterable[str] = (),
        resources: Mapping[str, float] | str | None = None,
    ) -> int:
        """
        Add a PENDING trial with these params; missing values are drawn from the space.

        Args:
            params: Values by name, nested or by path.
            priority: A trial with a lower priority runs first.
            name: A name for the trial, unique in the study; commands and methods take it in place
                of the number. Up to 200 printable characters, and no number.
            tags: Texts by which listings and SQL find the trial, up to 50.
            resources: What this trial needs instead of the study's `resources`, such as
                {"gpus": 2}; {} for nothing.

        Returns:
            The trial's number.

        Raises:
            BudgetSpent: `num_trials` trials exist; `extend` allows more.
            InvalidSpec: A name is not a parameter of the space, or a value is outside its domain,
                or the request for resources cannot be read.
            InvalidName: The name or a tag breaks a rule.
            TrialExists: Another trial of the study has the name.
        """
        options = {
            "priority": integer("priority", priority),
            "name": None if name is None else check_trial_name(name),
            "tags": check_tags(tags),
            "resources": read_resources_or_none("resources", resources),
        }
        return int(self._ask_once(enqueue, params, **options))

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
