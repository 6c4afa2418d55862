"""The setting `keep`: which checkpoints of each trial are kept, and their quota."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from msgspec import Struct

from studydb.domain.errors import InvalidSpec
from studydb.domain.objective import Objective
from studydb.domain.sizes import read_size, size_word
from studydb.domain.specs.building import build, rebuild
from studydb.domain.specs.grammar import parse_call
from studydb.domain.specs.spec import Spec, suggesting_options

FALLBACKS = 2
"""
Retention keeps at least this many of a trial's newest checkpoints: if the bytes of the newest are
corrupt or missing, an attempt restores the second newest. But a quota may remove the second newest
of any trial, and the newest of a trial that has ended.
"""


class SavedState(Struct, frozen=True):
    """
    A checkpoint of a trial; `Keep.expired` chooses among the checkpoints of a trial.

    Attributes:
        value: The value of the study's metric at `step`; None if no result has this step.
    """

    id: int
    step: int
    value: float | None


@suggesting_options
@dataclass(frozen=True)
class Keep(Spec):
    """
    Which checkpoints of each trial are kept; a checkpoint is kept if one of the options keeps it.

    The newest two are kept, because a trial goes on from the second newest if the bytes of the
    newest are corrupt; of the options, only `quota` can remove these two. Pinned checkpoints are
    kept, too.

    Attributes:
        last: How many of the newest checkpoints are kept; if this is 1, two are kept.
        best: How many checkpoints are kept because their steps have the best values of the study's
            metric. Of equal values, the one with the earlier checkpoint is better; NaN is never
            best.
        every: Checkpoints whose steps are multiples of this number are kept; None turns this off.
        quota: The most bytes that the kept checkpoints of all trials of the study have together,
            such as "10GB"; None for no limit. A save that would exceed the quota first removes
            the oldest checkpoints of any trials, except pinned ones and the newest of each trial
            that has not ended. If this would not free enough bytes, nothing is removed, the new
            checkpoint is not stored, and training continues.
    """

    last: int = 1
    best: int = 0
    every: int | None = None
    quota: int | str | None = None

    def _check(self) -> None:
        if self.quota is not None:
            object.__setattr__(self, "quota", read_size("Keep.quota", self.quota))
        for name, least in (("last", 1), ("best", 0), ("every", 1), ("quota", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidSpec(
                    f"Keep.{name} is {value!r}; it must be an integer of {least} or more."
                )

    @property
    def keeps_newest_only(self) -> bool:
        """Whether only the newest two are kept, so that values need not be read."""
        return self.last <= FALLBACKS and self.best == 0 and self.every is None

    def expired(self, saved: Sequence[SavedState], objective: Objective) -> list[int]:
        """
        Choose the checkpoints that are no longer kept; pins are not considered here.

        Args:
            saved: The trial's checkpoints that are not removed yet, in the order of the saves.

        Returns:
            Ids, ascending.
        """
        older = saved[: -max(self.last, FALLBACKS)]
        valued = [one for one in saved if one.value is not None and not isnan(one.value)]
        ranked = sorted(valued, key=lambda one: (objective.score(one.value or 0.0), one.id))
        best = {one.id for one in ranked[: self.best]}
        return sorted(
            one.id
            for one in older
            if one.id not in best and (self.every is None or one.step % self.every)
        )

    @property
    def quota_bytes(self) -> int | None:
        """The quota as a number of bytes; None for no limit."""
        return self.quota if isinstance(self.quota, int) else None

    def to_json(self) -> dict[str, Any]:
        """
        Return the stored form.

        A `quota` of None is left out, because earlier versions refuse this option.
        """
        stored = super().to_json()
        return stored if self.quota is not None else {k: stored[k] for k in stored if k != "quota"}

    def __str__(self) -> str:
        given = {name: value for name, value in self.options().items() if value}
        if self.quota_bytes is not None:
            given["quota"] = size_word(self.quota_bytes)
        return ", ".join(f"{name}={value}" for name, value in given.items())


_KNOWN = {"Keep": Keep}


def read_keep(name: str, value: Any) -> Keep:
    """
    Read a `Keep`, its text such as "last=3, best=1" or "Keep(last=3)", or its JSON.

    Raises:
        InvalidSpec: The value is none of these, or an option is wrong.
    """
    if isinstance(value, Keep):
        return value
    if isinstance(value, str):
        if "=" not in value and not value.lstrip().startswith("Keep"):
            raise InvalidSpec(f"{name} is {value!r}; write for example 'last=3, best=1'.")
        text = value if value.lstrip().startswith("Keep") else f"Keep({value})"
        return build(parse_call(text), _KNOWN, noun="retention")
    if isinstance(value, Mapping):
        return rebuild(value, _KNOWN, noun="retention")
    raise InvalidSpec(f"{name} is {value!r}; give studydb.Keep(…), such as studydb.Keep(best=1).")
