"""Change settings of a study: all that a person names, or none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field, structs

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.retention import Keep
from studydb.domain.limits import CostLimit, Limits
from studydb.domain.records import Request, Study
from studydb.domain.resources import Resources
from studydb.domain.trainable import Trainable
from studydb.operations.quota import recount
from studydb.operations.set_resources import set_resources
from studydb.store import events, quotas, studies, trainables


class Changes(Struct, frozen=True, kw_only=True):
    """
    The settings to change; None for a setting that keeps its value.

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


def set_retention(txn: Txn, study: Study, keep: Keep, request: Request) -> None:
    """
    Change which checkpoints are kept, for attempts that begin from now on.

    The first save of such an attempt removes the checkpoints that are no longer kept; no removed
    checkpoint comes back. If `keep` has a quota, this call sums up the sizes of the kept
    checkpoints, because the quota applies to running attempts, too.
    """
    kind, data = EventKind.RETENTION_SET, {"keep": str(keep)}
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
    settings = studies.locked_settings(txn, study_id=study.id)
    quotas.recount(txn, study_id=study.id, has_quota=keep.quota is not None)
    stored = {**settings, "keep": keep.to_json()}
    studies.store_settings(txn, study_id=study.id, settings=stored)


def set_limits(txn: Txn, study: Study, limits: Mapping[str, Any], request: Request) -> None:
    """
    Change limits that the study has; running trials obey them from their next flush or renewal on.

    Args:
        limits: Values by name, which `read_settings` has checked.

    Raises:
        NotAllowed: The study was created without one of the limits; or a value is None, which would
            remove the limit; or the cost limit is given in another metric. The transaction must be
            rolled back.
    """
    kind = EventKind.LIMITS_SET
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=dict(limits))
    settings = studies.locked_settings(txn, study_id=study.id)
    present = Limits.of(settings)
    for name, value in limits.items():
        _check_limit(study, name, getattr(present, name), value)
    studies.store_settings(txn, study_id=study.id, settings={**settings, **limits})


def _check_limit(study: Study, name: str, old: Any, new: Any) -> None:
    if old is None:
        raise NotAllowed(
            f"Study {study.name!r} was created without {name}, so its workers neither count nor "
            f"check it. Create a study with {name}."
        )
    if new is None:
        raise NotAllowed(f"The limit {name} of study {study.name!r} can be changed, not removed.")
    if isinstance(old, CostLimit) and old.metric != new.metric:
        raise NotAllowed(
            f"The cost of study {study.name!r} is counted in {old.metric!r}, not in "
            f"{new.metric!r}; write cost_limit={old.metric}<={new.most!r}."
        )


def relocate(txn: Txn, study: Study, url: str, request: Request) -> None:
    """
    Change the store for checkpoints of later attempts; the former stores stay readable.

    The caller has checked `url`.
    """
    kind, data = EventKind.CHECKPOINTS_SET, {"checkpoints": url}
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
    studies.relocate(txn, study_id=study.id, url=url)


def revise(txn: Txn, study: Study, trainable: Trainable, request: Request) -> None:
    """
    Replace a study's trainable for attempts that begin from now on.

    Args:
        trainable: The new trainable, signed for this study.
    """
    studies.lock(txn, study_id=study.id)  # concurrent calls must not leave two trainables
    former = trainables.drop(txn, study_id=study.id)
    data = {"name": trainable.name, "kind": trainable.kind, "former_name": former}
    events.append_request(
        txn, study_id=study.id, kind=EventKind.REVISED, request=request, data=data
    )
    trainables.insert(txn, study_id=study.id, what=trainable)


def change_settings(database: Database, study: Study, changes: Changes, request: Request) -> None:
    """
    Change several settings of a study in one transaction; if one is refused, none is changed.

    Each setting has its own event. The first event has the request's token, so a duplicate request
    changes nothing.

    Raises:
        UnknownTrial: One of the trials whose resources are to be changed does not exist.
        NotAllowed: The resources or a limit cannot be changed; see `set_resources`, `set_limits`.
        InvalidSpec: `of_trials` is not empty, the study has 64 different requests for resources
            already, and `resources` would be one more.
    """
    with suppress(Duplicate), database.begin() as txn:
        for index, (write, values) in enumerate(changes.writes()):
            part = structs.replace(request, token=f"{request.token}.{index}") if index else request
            write(txn, study, *values, part)
    if changes.keep is not None and changes.keep.quota is not None:
        _count_again(database, study)


def _count_again(database: Database, study: Study) -> None:
    """
    Sum up the sizes of a study's checkpoints once more after the study got a quota.

    A save or discard that began before the study had a quota does not change the sum, and may
    commit after the first sum was computed. The lock of the table waits for such transactions. The
    transaction here takes no other lock, so it cannot be part of a deadlock.
    """
    with database.begin() as txn:
        quotas.lock_checkpoints(txn)
    recount(database, study)
