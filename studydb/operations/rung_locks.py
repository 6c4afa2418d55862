"""Lock trials together with the rungs that they have entered."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from studydb.db import Txn
from studydb.domain.errors import StorageBusy
from studydb.domain.records import Study, TrialRow
from studydb.operations.reads import existing_trial
from studydb.store import rung_ranks, trials
from studydb.store.rungs import Rung

Result = TypeVar("Result")

TRIES = 100
"""The most runs of a transaction. Few are needed, because a trial can enter only a few rungs."""


def lock_with_rungs(
    txn: Txn, study: Study, numbers: Sequence[int]
) -> tuple[list[TrialRow], list[Rung]] | None:
    """
    Lock the rungs that trials have entered, then the trials, in ascending order.

    Returns:
        The trials and the rungs. None if a trial has entered another rung meanwhile: end the
        transaction, and try again.

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


def try_until_locked(transact: Callable[[], Result | None]) -> Result:
    """
    Run a transaction again until it has locked all rows that it needs.

    Args:
        transact: The transaction; it returns None if `lock_with_rungs` does, or if a checkpoint
            was removed before it was locked.

    Raises:
        StorageBusy: The rows have changed in each of 100 tries.
    """
    for _ in range(TRIES):
        result = transact()
        if result is not None:
            return result
    raise StorageBusy(
        f"The trials have entered other rungs, or have lost checkpoints, during each of {TRIES} "
        "tries to lock them. Run the same command again."
    )
