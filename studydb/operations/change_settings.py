"""Change settings of a study: all that a person names, or none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.life.retention import Keep
from studydb.domain.records import Request, Study, Trainable
from studydb.domain.resources import Resources
from studydb.operations.quota import recount
from studydb.operations.relocate import relocate
from studydb.operations.revise import revise
from studydb.operations.set_limits import set_limits
from studydb.operations.set_resources import set_resources
from studydb.operations.set_retention import set_retention
from studydb.store import quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """
    What is to be changed; None for a setting that stays.

    Attributes:
        resources: What the study, or the trials with the numbers in `of_trials`, ask for.
        limits: Values by name, which `read_settings` has checked; empty if the limits stay.
        checkpoints: The checked URL of the store for new checkpoints.
        trainable: The new trainable, signed for this study.
    """

    resources: Resources | None = None
    of_trials: Sequence[int] = ()
    keep: Keep | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None
    trainable: Trainable | None = None

    def writes(self) -> Iterator[tuple[Callable[..., None], tuple[Any, ...]]]:
        """
        Yield, for each setting that is changed, the function that changes it and the new values.

        `set_resources` comes first: it locks trials, which must be locked before the study's row,
        and all of these functions lock this row.
        """
        if self.resources is not None:
            yield set_resources, (self.resources, self.of_trials)
        if self.keep is not None:
            yield set_retention, (self.keep,)
        if self.limits:
            yield set_limits, (self.limits,)
        if self.checkpoints is not None:
            yield relocate, (self.checkpoints,)
        if self.trainable is not None:
            yield revise, (self.trainable,)


def change_settings(database: Database, study: Study, changes: Changes, request: Request) -> None:
    """
    Change several settings of a study in one transaction; if one is refused, none is changed.

    Each setting has its own event. The first event has the request's token, so a duplicate request
    changes nothing.

    Raises:
        UnknownTrial: One of the trials whose resources are to be changed does not exist.
        NotAllowed: The resources or a limit cannot be changed; see `set_resources`, `set_limits`.
        InvalidSpec: The study has 64 different requests for resources already, and `resources`
            would be one more.
    """
    with suppress(Duplicate), database.begin() as txn:
        for index, (write, values) in enumerate(changes.writes()):
            part = replace(request, token=f"{request.token}.{index}") if index else request
            write(txn, study, *values, part)
    if changes.keep is not None and changes.keep.quota is not None:
        _count_again(database, study)


def _count_again(database: Database, study: Study) -> None:
    """
    Sum up the sizes of a study's checkpoints once more after it got a quota.

    A save or discard that began before the study had a quota does not count, and may commit later.
    A lock of the table waits for it. The lock is the only one of its transaction, so that no other
    transaction, whatever it has locked, can wait for this one in a circle.
    """
    with database.begin() as txn:
        quotas.lock_checkpoints(txn)
    recount(database, study)
