"""Let an enqueued trial begin from a checkpoint: one of another trial, or an uploaded one."""

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from studydb.db import Txn
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.errors import NotAllowed, NotFound
from studydb.domain.records import Request, Study
from studydb.operations.checkpoints import newest_of
from studydb.operations.reads import unknown_trial
from studydb.store import checkpoint_listing, checkpoints, pins, quotas, studies, trials, uploads

NO_OTHERS: Mapping[int, str] = MappingProxyType({})

TRIES = 10
"""
The most times that a checkpoint is chosen before the request fails. If another trial has begun from
the chosen checkpoint, an attempt of that trial may mark the checkpoint as corrupt. This attempt
locks only its own trial, so the lock of the checkpoint's trial does not prevent the mark. Then
another checkpoint is chosen.
"""


class FromTrial(Struct, frozen=True):
    """
    A checkpoint of a trial in this database.

    Attributes:
        study_id, study_name, number: The trial, which may be of another study than the new trial.
        step: The checkpoint's step; None for the newest checkpoint.
        checkpoint_id: The id of the checkpoint's row; None to find the row by `step`.
    """

    study_id: int
    study_name: str
    number: int
    step: int | None = None
    checkpoint_id: int | None = None


class Uploaded(Struct, frozen=True):
    """
    A checkpoint that a person has uploaded; the caller has signed it for the new trial's attempt 0.

    Attributes:
        data: The bytes of an inline checkpoint; None if the caller has written them to a store,
            after `begin_upload_of_person`.
    """

    checkpoint: Checkpoint
    data: bytes | None = None


Start = FromTrial | Uploaded


def lock_source(txn: Txn, study: Study, start: Start | None) -> Checkpoint | None:
    """
    Count one more pin of the checkpoint from which a new trial begins, and call `lock_studies`.

    The order of locks is: the source trial, its checkpoint, the studies by ascending id.

    Returns:
        The checkpoint; None if the trial begins from an uploaded checkpoint or from scratch.

    Raises:
        UnknownTrial: No such trial.
        NotFound: The trial keeps no such checkpoint.
        NotAllowed, UnknownStudy: See `lock_studies`.
    """
    if start is None:
        return None
    if isinstance(start, Uploaded):
        # A deletion of the study that has begun could miss the uploaded bytes; then this raises.
        lock_studies(txn, study)
        return None
    trial = trials.find(txn, study_id=start.study_id, number=start.number, lock=True)
    if trial is None:
        studies.check_exists(txn, study_id=study.id)
        raise unknown_trial(txn, start.number, study_id=start.study_id, study_name=start.study_name)
    found, source_id = _pinned(txn, start, trial_id=trial.id, newest_id=trial.checkpoint_id)
    lock_studies(txn, study, source_ids=[source_id], others={start.study_id: start.study_name})
    return found


def lock_studies(
    txn: Txn, study: Study, *, source_ids: Sequence[int] = (), others: Mapping[int, str] = NO_OTHERS
) -> None:
    """
    Lock the rows of the studies whose checkpoints were pinned.

    No deletion of these studies begins while the rows are locked. If a trial has saved nothing, its
    newest checkpoint is the checkpoint from which it began, which may be of another study. So the
    pinned checkpoint's study may differ from the study of the trial that the caller has named.

    Args:
        study: The study of the new trials; its row is locked, too.
        source_ids: The ids of the pinned checkpoints; the caller has locked their rows.
        others: Further studies to lock: their names by their ids.

    Raises:
        NotAllowed: One of the studies is being deleted, or a study other than `study` was deleted.
        UnknownStudy: The study of the new trials was deleted.
    """
    sources = checkpoints.studies_of(txn, ids=source_ids) if source_ids else {}
    named = {study.id: study.name, **others, **sources}
    for study_id in sorted(named):
        if studies.lock_undeleted(txn, study_id=study_id):
            continue
        studies.check_exists(txn, study_id=study.id)
        name = named[study_id]
        refused = (
            "is being deleted, so it takes no new trial that begins from a checkpoint"
            if study_id == study.id
            else "is being deleted or was deleted, so no trial can begin from its checkpoints"
        )
        raise NotAllowed(
            f"Study {name!r} {refused}. If its deletion has failed, cancel it by "
            f"`studydb resume {shlex.quote(name)}`."
        )


def begin_from(
    txn: Txn,
    study: Study,
    start: Start | None,
    source: Checkpoint | None,
    request: Request,
    *,
    trial_id: int,
) -> None:
    """
    Store from which checkpoint a new trial begins.

    A pin keeps a checkpoint of another trial until the new trial ends. If the other trial is of
    another study, `study` reads that study's stores from now on. An uploaded checkpoint needs no
    pin, because it becomes a checkpoint of the new trial.

    Args:
        source: What `lock_source` returned.

    Raises:
        NotFound: The upload took longer than a day, so its bytes were deleted, or soon will be.
    """
    if isinstance(start, Uploaded):
        _insert_uploaded(txn, study, start, trial_id=trial_id)
    if not isinstance(start, FromTrial) or source is None or source.id is None:
        return
    checkpoints.set_start(
        txn, trial_id=trial_id, checkpoint_id=source.id, step=source.step, source_id=source.id
    )
    pins.insert(
        txn,
        study_id=study.id,
        checkpoint_id=source.id,
        trial_id=trial_id,
        actor=request.actor,
        reason=pins.START,
    )
    if start.study_id != study.id:
        studies.read_stores_of(txn, study_id=study.id, other_id=start.study_id)


def _insert_uploaded(txn: Txn, study: Study, start: Uploaded, *, trial_id: int) -> None:
    what = start.checkpoint
    new = checkpoints.insert(
        txn, study_id=study.id, trial_id=trial_id, attempt=0, what=what, data=start.data
    )
    if start.data is None and not uploads.end_of_person(txn, uuid=what.uuid):
        raise NotFound(
            "The uploaded checkpoint cannot be used, because its upload took longer than a day. "
            "Enqueue the trial again."
        )
    if new.is_counted:
        quotas.add(txn, study_id=study.id, size_bytes=what.size_bytes)
    checkpoints.set_start(
        txn, trial_id=trial_id, checkpoint_id=new.id, step=what.step, source_id=None
    )


def _pinned(
    txn: Txn, start: FromTrial, *, trial_id: int, newest_id: int | None
) -> tuple[Checkpoint, int]:
    """Choose a checkpoint and count its pin; choose again if the checkpoint was just removed."""
    for _ in range(TRIES if start.checkpoint_id is None else 1):
        found = _chosen(txn, start, trial_id=trial_id, newest_id=newest_id)
        if found is None or found.id is None:
            break
        if pins.count(txn, checkpoint_id=found.id):
            return found, found.id
    raise NotFound(_absence(start))


def _chosen(
    txn: Txn, start: FromTrial, *, trial_id: int, newest_id: int | None
) -> Checkpoint | None:
    if start.checkpoint_id is not None:
        return checkpoints.find(txn, checkpoint_id=start.checkpoint_id)
    if start.step is None:
        return None if newest_id is None else newest_of(txn, checkpoint_id=newest_id)
    kept = [row for row, _ in checkpoint_listing.of_trial(txn, trial_id=trial_id)]
    return next((row for row in reversed(kept) if row.step == start.step), None)


def _absence(start: FromTrial) -> str:
    what = "no checkpoint" if start.step is None else f"no checkpoint of step {start.step}"
    name = shlex.quote(start.study_name)
    return (
        f"Trial {start.number} of {start.study_name!r} keeps {what}. "
        f"`studydb checkpoints {name} {start.number}` lists the kept checkpoints."
    )
