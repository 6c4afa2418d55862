"""
Find removed checkpoints, and mark as removed the checkpoints that a study's `keep` does not keep.

A trial has checkpoints that `keep` does not keep, if a pin was removed or `keep` was changed after
the trial's last save.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from studydb.db import Database, Txn
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.life.retention import Keep, SavedState
from studydb.domain.objective import Objective
from studydb.domain.records import Study
from studydb.operations.reads import existing_trial
from studydb.store import checkpoint_listing, checkpoints, quotas, studies
from studydb.store.checkpoint_listing import CheckpointWithPins

MOST_TRIALS = 1_000
"""The most trials of a page."""


class RemovedPage(NamedTuple):
    """
    The removed checkpoints of some consecutive trials, ordered by trial.

    Attributes:
        next_number: The trial number after which the next page begins; None in the last page.
    """

    checkpoints: list[Checkpoint]
    next_number: int | None


class UnkeptPage(NamedTuple):
    """
    Checkpoints of a page of trials: those that have no pin and that `keep` does not keep.

    Attributes:
        numbers: The numbers of the trials that have these checkpoints, ascending.
        next_number: The trial number after which the next page begins; None if this page is the
            last.
    """

    checkpoints: list[Checkpoint]
    numbers: list[int]
    next_number: int | None


def read_removed(database: Database, study: Study, *, after_number: int) -> RemovedPage:
    """
    Read a page of the checkpoints that are marked as removed, except corrupt and pinned ones.

    The process that marks a checkpoint as removed deletes the bytes after its COMMIT, and then the
    row. If that process died or the store failed, the row is left, and perhaps the bytes.
    """
    with database.begin(write=False, snapshot=True) as txn:
        trial_ids, next_number = _trials_after(txn, study, after_number)
        return RemovedPage(checkpoints.removed(txn, trial_ids=trial_ids), next_number)


def read_unkept(database: Database, study: Study, *, after_number: int) -> UnkeptPage:
    """Read a page of the checkpoints that `remove_unkept` would remove."""
    with database.begin(write=False, snapshot=True) as txn:
        keep = _keep(txn, study)
        trial_ids, next_number = _trials_after(txn, study, after_number)
        found = list(_unkept(txn, keep, study.objective, trial_ids))
    numbers = sorted({one.number for one in found})
    return UnkeptPage([one.row for one in found], numbers, next_number)


def _trials_after(txn: Txn, study: Study, number: int) -> tuple[list[int], int | None]:
    """Return the ids of a page's trials, and the number after which the next page begins."""
    trials = checkpoint_listing.trials_after(
        txn, study_id=study.id, after_number=number, limit=MOST_TRIALS
    )
    is_last = len(trials) < MOST_TRIALS
    return [one.id for one in trials], None if is_last else trials[-1].number


def remove_unkept(database: Database, study: Study, number: int) -> None:
    """
    Mark as removed those checkpoints of a trial that `keep` does not keep, except pinned ones.

    The trial's row is locked, so that no save changes meanwhile which checkpoint the trial restores
    next. That checkpoint is not removed.

    Raises:
        UnknownTrial: The trial was deleted, and its study is being deleted.
        UnknownStudy: The study was deleted.
    """
    with database.begin() as txn:
        trial = existing_trial(txn, study, number, lock=True)
        found = _unkept(txn, _keep(txn, study), study.objective, [trial.id])
        ids = [one.row.id for one in found if one.row.id is not None]
        removed = checkpoints.expire_listed(txn, ids=ids)
        size_bytes = sum(one.size_bytes for one in removed)
        quotas.add(txn, study_id=study.id, size_bytes=-size_bytes)


def _keep(txn: Txn, study: Study) -> Keep:
    return studies.read_changeable(txn, study_id=study.id, trainable_uuid="").keep


def _unkept(
    txn: Txn, keep: Keep, objective: Objective, trial_ids: Sequence[int]
) -> Iterator[CheckpointWithPins]:
    kept = checkpoint_listing.of_trials(txn, trial_ids=trial_ids)
    for _, group in groupby(kept, key=attrgetter("number")):
        mine = list(group)
        saved = [SavedState(one.row.id or 0, one.row.step, one.value) for one in mine]
        expired = set(keep.expired(saved, objective))
        yield from (one for one in mine if one.row.id in expired and one.pins == 0)
