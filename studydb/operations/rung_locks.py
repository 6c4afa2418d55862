"""Lock trials together with the rungs that they have entered."""

from collections.abc import Sequence

from studydb.db import Txn
from studydb.domain.records import Study, TrialRow
from studydb.operations.reads import existing_trial
from studydb.store import rung_ranks, trials
from studydb.store.rungs import Rung


def lock_with_rungs(
    txn: Txn, study: Study, numbers: Sequence[int]
) -> tuple[list[TrialRow], list[Rung]] | None:
    """
    Lock the rungs that trials have entered, then the trials, in ascending order.

    Returns:
        None if a trial has entered another rung meanwhile: end the transaction, and try again.

    Raises:
        UnknownTrial: No such trial.
    """
    ids = trials.ids(txn, study_id=study.id, numbers=numbers)
    rungs = rung_ranks.lock(txn, study_id=study.id, trial_ids=ids)
    locked = [existing_trial(txn, study, number, lock=True) for number in sorted(numbers)]
    ids = [trial.id for trial in locked]
    if rung_ranks.are_locked(txn, study_id=study.id, trial_ids=ids, locked=rungs):
        return locked, rungs
    return None
