"""End the trials that a closed rung has not kept: any worker ends them, 100 at a time."""

from studydb.db import Database
from studydb.domain.life.states import Reason, State
from studydb.domain.records import Study
from studydb.operations import summing
from studydb.store import closings, counters, trials


def give_up(database: Database, study: Study) -> None:
    """
    End trials that wait at closed rungs and were not kept, and rungs at which no trial waits.

    Trials that a person has paused stay PAUSED until the person resumes them. Rungs and trials
    that another worker has locked are left to that worker.
    """
    unsummed, n_results, n_ended = [], 0, 0
    with database.begin(durable=False) as txn:  # trials whose end is lost are ended again
        rungs = closings.lock_closed(txn, study_id=study.id)
        given_up = closings.lock_given_up(txn, study_id=study.id, rungs=rungs)

        for trial in given_up:
            n_results += trial.n_results
            summary = None
            if trial.n_results:
                summary = summing.in_transaction(txn, study, trial_id=trial.id, n_results=n_results)
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
        if n_ended:
            counters.move(
                txn,
                study_id=study.id,
                key=0,
                out_of=State.PAUSED,
                into=State.TERMINATED,
                n=n_ended,
            )
    for trial_id in unsummed:
        summing.after_end(database, study, trial_id=trial_id)
