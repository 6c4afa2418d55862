"""End an attempt and store its last batch."""

from studydb.db import Database
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.failures import Failure
from studydb.domain.life.decisions import TRIAL_IS_DONE
from studydb.domain.life.ending import Ending, TrialFacts
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch, Lease, Study
from studydb.domain.tally import Tally
from studydb.operations import summing
from studydb.operations.attempt_end import decide, end_attempt, known_analysis
from studydb.operations.flushing import flush, refused, summary_if_undecided
from studydb.store import results, single_statement


def finish(
    database: Database,
    study: Study,
    *,
    lease: Lease,
    outcome: Reason,
    batch: Batch,
    tally: Tally | None = None,
    failure: Failure | None = None,
    process: AttemptProcess | None = None,
) -> Ending | None:
    """
    End an attempt and move its trial to its next state.

    The last batch is stored. Results after the verdict of a scheduler, a rule or a limit are
    dropped, and so are results after the result with which the trial is done.

    Args:
        outcome: COMPLETED, FAILED (the user's code raised), LOST (the process died) or PREEMPTED
            (the trial is given back). PREEMPTED counts neither as a failure nor as a loss, unless a
            command has given the trial back too often (`judge_exit`). If a trial has run for too
            long, its worker gives it back, and the verdict TIMED_OUT ends the trial.
        tally: The tally of the trial's results before this batch, if this attempt knows them all.

    Returns:
        The trial's next state; None if the same finish was stored before.

    Raises:
        LeaseLost: The attempt no longer holds its trial.
        DecisionNeeded: The study's custom scheduler must be asked first; nothing was stored.
    """
    if outcome is Reason.COMPLETED and study.max_concurrent is None:
        ending = _complete(database, study, lease, batch, tally=tally, process=process)
        if ending is not None:
            return ending

    ended = None
    with database.begin() as txn:
        flushed = flush(txn, study, lease=lease, batch=batch)
        if flushed is None:
            refused(txn, lease=lease, flush_no=batch.flush_no)
        else:
            results.append(txn, lease=lease, results=flushed.stored)
            ended = end_attempt(
                txn,
                study,
                flushed,
                lease=lease,
                outcome=outcome,
                flush_no=batch.flush_no,
                tally=tally,
                failure=failure,
                process=process,
            )
    if ended is None or ended.unsummed:
        summing.after_end(database, study, trial_id=lease.trial_id)
    return None if ended is None else ended.ending


def _complete(
    database: Database,
    study: Study,
    lease: Lease,
    batch: Batch,
    *,
    tally: Tally | None,
    process: AttemptProcess | None,
) -> Ending | None:
    """Complete a trial in a single statement; None if several statements are needed."""
    summary = summary_if_undecided(study, lease, batch, completes=True)
    if summary is None:
        return None
    analysis = known_analysis(study, tally, batch.results, summary)
    if analysis is None:
        return None
    verdict = TRIAL_IS_DONE if batch.results and batch.results[-1].is_last else None
    with database.begin(single=True) as txn:
        completed = single_statement.finish(
            txn,
            lease=lease,
            batch=batch,
            summary=summary,
            metric_summary=analysis or None,
            verdict=verdict,
            process=process,
        )
    if completed is None:
        return None
    facts = TrialFacts(completed.failures, completed.losses, verdict)
    return decide(study, Reason.COMPLETED, facts)
