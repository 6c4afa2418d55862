"""
Find checkpoints that a study's `keep` does not keep, and mark them as removed.

There are such checkpoints if, after a trial's last save, a pin was removed or `keep` was changed.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from studydb.db import Database, Txn
from studydb.domain.life.retention import Keep, SavedState
from studydb.domain.objective import Objective
from studydb.domain.records import Checkpoint, Study
from studydb.operations.reads import existing_trial
from studydb.operations.removed_checkpoints import MOST_TRIALS
from studydb.store import checkpoint_listing, checkpoints, quotas, studies
from studydb.store.checkpoint_listing import CountedPins


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


def read_unkept(database: Database, study: Study, *, after_number: int) -> UnkeptPage:
    """Read a page of the checkpoints that `remove_unkept` would remove."""
    with database.begin(write=False, snapshot=True) as txn:
        keep = _keep(txn, study)
        trials = checkpoint_listing.trials_after(
            txn, study_id=study.id, after_number=after_number, limit=MOST_TRIALS
        )
        found = list(_unkept(txn, keep, study.objective, [one.id for one in trials]))
    numbers = sorted({one.number for one in found})
    is_last = len(trials) < MOST_TRIALS
    return UnkeptPage([one.row for one in found], numbers, None if is_last else trials[-1].number)


def remove_unkept(database: Database, study: Study, number: int) -> None:
    """
    Mark as removed those checkpoints of a trial that `keep` does not keep, except pinned ones.

    The trial's row is locked, so that no save changes meanwhile which checkpoint the trial restores
    next. That checkpoint is not removed.

    Raises:
        UnknownTrial: The trial was deleted with its study.
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
) -> Iterator[CountedPins]:
    kept = checkpoint_listing.of_trials(txn, trial_ids=trial_ids)
    for _, group in groupby(kept, key=attrgetter("number")):
        mine = list(group)
        saved = [SavedState(one.row.id or 0, one.row.step, one.value) for one in mine]
        expired = set(keep.expired(saved, objective))
        yield from (one for one in mine if one.row.id in expired and one.pins == 0)
