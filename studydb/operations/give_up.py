"""End the trials that a closed rung has not kept: any worker ends them, 100 at a time."""

from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import is_of_values
from studydb.domain.life.states import Reason, State
from studydb.domain.records import Study
from studydb.operations import summing
from studydb.store import closings, counters, pins, trials

MOST_TRANSACTIONS = 10
"""How many transactions in a row an idle worker runs at most, before it looks for other work."""


def give_up(database: Database, study: Study, *, is_idle: bool = False) -> None:
    """
    End the trials that wait at closed rungs and were not kept.

    A closed rung at which no trial waits any more is marked as over.

    Trials that a person has paused stay PAUSED until the person resumes them. Rungs and trials
    that another transaction has locked are left to a later call. A trial ends without a summary of
    its metrics if its results cannot be summed up. A trial with very many results is summed up
    after the commit; if the worker dies before it has stored this summary, the trial has none.

    Args:
        is_idle: Whether the worker has nothing else to do. If so, it ends at most 1,000 trials,
            else 100.
    """
    for _ in range(MOST_TRANSACTIONS if is_idle else 1):
        if _give_up_some(database, study) < closings.MOST:
            return


def _give_up_some(database: Database, study: Study) -> int:
    """Give up at most 100 trials, and return their number."""
    try:
        found, unsummed = _end(database, study, sums=True)
    except Exception as error:
        if not is_of_values(error):
            raise
        found, unsummed = _end(database, study, sums=False)
    for trial_id in unsummed:
        with suppress(Exception):  # the trial then has no summary of its metrics
            summing.after_end(database, study, trial_id=trial_id)
    return found


def _end(database: Database, study: Study, *, sums: bool) -> tuple[int, list[int]]:
    """End at most 100 trials; return how many, and the ids of those to sum up after the commit."""
    unsummed, n_results, n_ended = [], 0, 0
    with database.begin(durable=False) as txn:  # if a crash undoes this, a worker repeats it
        rungs = closings.lock_closed(txn, study_id=study.id)
        given_up = closings.lock_given_up(txn, study_id=study.id, rungs=rungs)

        for trial in given_up:
            n_results += trial.n_results
            summary = None
            if trial.n_results:
                if sums:
                    summary = summing.in_transaction(
                        txn, study, trial_id=trial.id, n_results=n_results
                    )
                unsummed += [trial.id] if summary is None else []
            n_ended += trials.move(
                txn,
                trial_id=trial.id,
                target=State.TERMINATED,
                reason=Reason.GIVEN_UP,
                metric_summary=summary,
            )
            closings.leave(txn, trial=trial)

        closings.end_rungs(txn, rungs=rungs)
        if given_up:
            pins.release(txn, trial_ids=[trial.id for trial in given_up])
        if n_ended:
            counters.move(
                txn,
                study_id=study.id,
                key=0,
                out_of=State.PAUSED,
                into=State.TERMINATED,
                n=n_ended,
            )
    return len(given_up), unsummed
