"""The spec of a study: the definition that is checked at creation and stored in its row."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from studydb.domain.arguments import LARGEST_32, count, count_or_none, flag
from studydb.domain.life.ending import MAX_LOSSES
from studydb.domain.life.retention import Keep, read_keep
from studydb.domain.life.retry_policy import Retry, read_retry
from studydb.domain.life.rules import Rule, rules_of_study
from studydb.domain.limits import (
    LIMITS,
    CostLimit,
    LimitOptions,
    Limits,
    read_cost_limit,
    read_duration,
    read_max_steps,
)
from studydb.domain.objective import Objective
from studydb.domain.resource_function import Requested, ResourceFunction, read_requested
from studydb.domain.resources import Resources, read_require
from studydb.domain.scheduling import Scheduler
from studydb.domain.searching import Searcher
from studydb.domain.space.search_space import Space

Reader = Callable[[str, Any], Any]
"""Checks a setting, given its name and value, and returns the value."""


def setting(default: Any, read: Reader) -> Any:
    """Declare a setting, a field of `StudySpec`; a row without the setting has the default."""
    return field(default=default, metadata={"read": read})


class MoreOptions(LimitOptions, total=False):
    """
    Arguments of `create_study` for limits, failures, checkpoints and resources.

    Attributes:
        fail_fast: Whether the study pauses itself at its first failure, or once lost attempts end a
            trial; running trials save and wait, and `study.run` raises StudyFailed. "raise", as in
            Ray Tune, means True.
        retry: Which exceptions are retried, and which of them count as failures; None to retry all,
            as often as `max_failures` allows.
        keep: Which checkpoints of each trial are kept, such as Keep(last=3, best=1) or its text
            "last=3, best=1"; by default the newest two.
        resources: What each trial needs, such as {"gpus": 1, "memory_gb": 8, "licence": 1} or
            "gpus=1"; a worker starts a trial only if the worker has these amounts free. If the
            amounts depend on the trial, give a function in a module, or its import path
            "module:function". The function gets a trial's config and returns the amounts.
        require: Tags that a worker must have to run the study, such as ["a100"].
    """

    fail_fast: bool | str
    retry: Retry | str | None
    keep: Keep | str
    resources: Mapping[str, float] | str | Callable[[dict[str, Any]], Any] | None
    require: Iterable[str]


def fail_fast_flag(name: str, value: Any) -> bool:
    """Read True, False or "raise", which is Ray Tune's word and means True."""
    return flag(name, True if isinstance(value, str) and value == "raise" else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """
    The checked arguments with which a study is created.

    To add a setting, add a field here, an argument of `create_study` and an option of `studydb
    create`. The study's row holds a setting in the column of its name, or in the JSON column
    `settings`. `create_study` explains the settings that are not listed here.

    Attributes:
        searcher: None if all trials of the study are enqueued.
        losses_at_step: How many lost attempts in a row at one step end a trial; None for no limit.
    """

    objective: Objective
    space: Space
    scheduler: Scheduler
    searcher: Searcher | None
    rules: tuple[Rule, ...] = ()
    checkpoints: str | None = None
    num_trials: int | None = setting(None, partial(count_or_none, least=1))
    max_concurrent: int | None = setting(None, partial(count_or_none, least=1, most=LARGEST_32))
    max_failures: int = setting(0, partial(count, least=-1, most=LARGEST_32))
    max_losses: int = setting(MAX_LOSSES, partial(count, least=0, most=LARGEST_32))
    losses_at_step: int | None = setting(None, partial(count_or_none, least=1))
    guard: bool = setting(True, flag)
    fail_fast: bool = setting(False, fail_fast_flag)
    retry: Retry | None = setting(None, read_retry)  # noqa: RUF009  a field
    keep: Keep = setting(Keep(), read_keep)  # noqa: RUF009  a field
    cost_limit: CostLimit | None = setting(None, read_cost_limit)  # noqa: RUF009  a field
    max_steps: int | None = setting(None, read_max_steps)
    total_time_limit_s: float | None = setting(None, read_duration)
    time_limit_s: float | None = setting(None, read_duration)
    trial_time_limit_s: float | None = setting(None, read_duration)
    resources: Requested | None = setting(None, read_requested)  # noqa: RUF009  a field
    require: tuple[str, ...] = setting((), read_require)

    @property
    def num_draws(self) -> int | None:
        """How many points the searcher can propose; None for no limit, 0 without a searcher."""
        return 0 if self.searcher is None else self.searcher.size(self.space)

    @property
    def limits(self) -> Limits:
        """The limits when this record was read; a person may have changed them since then."""
        return Limits(**{name: getattr(self, name) for name in LIMITS})

    @property
    def has_spending_limits(self) -> bool:
        """Whether a limit of cost, reports or running time is checked at each flush."""
        return (
            self.cost_limit is not None
            or self.max_steps is not None
            or self.total_time_limit_s is not None
            or self.trial_time_limit_s is not None
        )

    @property
    def stops_by_rule(self) -> bool:
        """
        Whether the study has a rule that stops the whole study, not one trial.

        Such a rule is a `Plateau` with `top`.
        """
        return bool(self.rules) and bool(rules_of_study(self.rules))

    @property
    def common_request(self) -> Resources:
        """What a trial without its own request asks for; empty if the study names no amounts."""
        return self.resources if isinstance(self.resources, Resources) else Resources()

    @property
    def asks_by_config(self) -> bool:
        """Whether a function says what each trial asks for."""
        return isinstance(self.resources, ResourceFunction)

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in DEFAULTS}

    def settings_json(self) -> dict[str, Any]:
        """Return the settings as they are stored."""
        settings = self.settings() | {"keep": self.keep.to_json(), "require": list(self.require)}
        if self.resources is not None:
            settings["resources"] = self.resources.to_json()
        if self.retry is not None:
            settings["retry"] = self.retry.to_json()
        return settings


_SETTINGS = [each for each in fields(StudySpec) if "read" in each.metadata]

DEFAULTS: dict[str, Any] = {each.name: each.default for each in _SETTINGS}
"""The settings by name, each with its default."""

_READERS: dict[str, Reader] = {each.name: each.metadata["read"] for each in _SETTINGS}


def read_settings(**given: Any) -> dict[str, Any]:
    """
    Check and convert settings, given by name.

    Raises:
        InvalidSpec: A value is wrong.
        InvalidName: A tag, or the metric of `cost_limit`, breaks a rule for names.
    """
    return {name: _READERS[name](name, value) for name, value in given.items()}
