"""Read the removed checkpoints of a study whose bytes may still be there."""

from typing import NamedTuple

from studydb.db import Database
from studydb.domain.records import Checkpoint, Study
from studydb.store import checkpoint_listing, checkpoints

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


def read_removed(database: Database, study: Study, *, after_number: int) -> RemovedPage:
    """
    Read a page of the checkpoints that are marked as removed, except corrupt and pinned ones.

    The process that marks a checkpoint as removed deletes the bytes after its COMMIT, and then the
    row. If that process died or the store failed, the row is left, and perhaps the bytes.
    """
    with database.begin(write=False, snapshot=True) as txn:
        trials = checkpoint_listing.trials_after(
            txn, study_id=study.id, after_number=after_number, limit=MOST_TRIALS
        )
        found = checkpoints.removed(txn, trial_ids=[one.id for one in trials])
    is_last = len(trials) < MOST_TRIALS
    return RemovedPage(found, None if is_last else trials[-1].number)
