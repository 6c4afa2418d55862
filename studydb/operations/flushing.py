"""
The steps that report and finish share: lock rungs, check the fence, judge the batch.

Rules judge a result before the scheduler does. Results after the first result that gets a verdict
are dropped. A result with `is_last` ends the trial as COMPLETED, whatever the scheduler decides,
unless the result meets a rule.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from studydb.db import Txn
from studydb.db.faults import is_of_missing_row
from studydb.domain.deciding import DecisionNeeded, Undecided
from studydb.domain.errors import LeaseLost
from studydb.domain.life.custom_rule import RuleDecision
from studydb.domain.life.decisions import (
    TRIAL_IS_DONE,
    Action,
    DecidedBy,
    Decision,
    RungKey,
    Verdict,
)
from studydb.domain.life.rules import first_hit, longest_history
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch, Lease, Study
from studydb.domain.scheduling import Report
from studydb.domain.seeds import trial_seed
from studydb.store import attempts, leases, means, results, rungs
from studydb.store.leases import Held
from studydb.store.rung_view import LockedView
from studydb.store.rungs import Rung
from studydb.store.trials import verdict_of


class Flushed(Struct, frozen=True):
    """
    A held trial after a flush.

    Attributes:
        held: The trial's row before the flush.
        stored: The results to store: the batch's results through the first that gets a verdict.
        summary: The trial's summary after the flush.
        verdict: The verdict on the stored results; None to continue.
        is_new: False if the batch was dropped, or stored before this flush.
        ruled: What the study's custom stop rules say about the batch, also about results that are
            dropped; None if nothing is stored, or if no rule has failed and none has stopped the
            trial.
        undecided: The first stored step that the study's custom scheduler failed to judge, and why;
            None if there is no such step.
        why: The reason that the study's custom scheduler gives for stopping or pausing the trial at
            the last stored step; None if it gives no reason.
        resources: The new request for resources of the trial's next attempts, which the custom
            scheduler has given with a verdict; None if the request does not change.
    """

    held: Held
    stored: tuple[Result, ...]
    summary: Summary
    time_total_s: float | None
    verdict: Verdict | None = None
    is_new: bool = True
    ruled: RuleDecision | None = None
    undecided: tuple[int, Undecided] | None = None
    why: str | None = None
    resources: Mapping[str, float] | None = None


def unchanged(held: Held) -> Flushed:
    """Make the `Flushed` of a flush that stored nothing."""
    return Flushed(held, (), held.summary, held.time_total_s, is_new=False)


def flush(txn: Txn, study: Study, *, lease: Lease, batch: Batch) -> Flushed | None:
    """
    Judge a batch of an attempt, and enter it in rungs, if the attempt holds its trial.

    The caller stores the results and the verdict. The first batch of a later attempt supersedes
    results of earlier attempts. A batch that was stored before is not judged again. If a stored
    verdict refuses results, the batch is dropped.

    Returns:
        None if the attempt no longer holds its trial.

    Raises:
        DecisionNeeded: The study's custom scheduler must be asked about a result. The caller must
            not commit.
        LeaseLost: The study was deleted.
    """
    locked = lock_rungs(txn, study, lease=lease, batch=batch)  # lock order: rungs before trials
    view = LockedView(txn, locked, study, lease=lease)
    view.query()
    held = leases.hold(txn, lease=lease)  # waits for the replies to the view's queries, too
    if held is None:
        return None
    if held.refuses_results or held.flush_no >= batch.flush_no:
        return unchanged(held)
    return _judge_batch(txn, study, view, held, lease=lease, batch=batch)


def due_results(study: Study, lease: Lease, batch: Batch) -> Iterator[Result]:
    """
    Yield those results of a batch that the scheduler must judge.

    The first result of an attempt may be at or before the step of the restored checkpoint, if the
    user's code ignores the checkpoint and starts again at step 1. This result is not judged; the
    results after it are judged as usual.
    """
    before = batch.after_step
    for result in batch.results:
        due = study.scheduler.next_decision_step(lease.bracket, before)
        if due is None and result.step > before:
            return
        if due is not None and result.step >= due:
            yield result
        before = result.step


def summary_if_undecided(
    study: Study, lease: Lease, batch: Batch, *, completes: bool = False
) -> Summary | None:
    """
    Compute the trial's summary after a batch that no scheduler or rule decides on.

    Args:
        completes: Whether the statement that stores the batch also completes the trial. Then the
            batch's last result may have `is_last`.

    Returns:
        None if several statements are needed, because the scheduler must decide, a stop rule may be
        met, the trial is done, spending or running time is limited, or the first step does not
        follow the restored step. Also None if this attempt does not know the summary before the
        batch.
    """
    summary = batch.before
    if (
        summary is None
        or study.has_spending_limits
        or any(due_results(study, lease, batch))
        or _needs_rules(study, batch)
    ):
        return None
    if any(map(_IS_LAST, batch.results[:-1] if completes else batch.results)):
        return None
    if batch.results and summary.n_results == 0 and batch.results[0].step != batch.after_step + 1:
        return None  # `attempts.begin_at` must store the first step
    return summary.add(batch.results, study.objective)


_IS_LAST = attrgetter("is_last")


def _needs_rules(study: Study, batch: Batch) -> bool:
    """
    Tell whether the study's rules must be judged in a transaction of several statements.

    That is so if a rule is met, a custom rule has failed or has stopped the trial, a rule compares
    a result with earlier results, or a rule can stop the study.
    """
    if not study.rules:
        return False
    if batch.ruled is not None:
        return True
    if longest_history(study.rules) > 1 or study.stops_by_rule:
        return True
    return any(
        first_hit(study.rules, [result], 1, objective=study.objective) for result in batch.results
    )


def lock_rungs(txn: Txn, study: Study, *, lease: Lease, batch: Batch) -> dict[RungKey, Rung]:
    """
    Lock every rung that a batch may enter, in ascending order. The trial is locked later.

    Raises:
        LeaseLost: The study was deleted, so that no rung can be made.
    """
    keys = {
        key
        for result in due_results(study, lease, batch)
        for key in study.scheduler.locks(lease.bracket, result.step)
    }
    try:
        return {
            key: rungs.lock_or_create(txn, study_id=study.id, spec=study.scheduler.rung_spec(key))
            for key in sorted(keys)
        }
    except Exception as error:
        if is_of_missing_row(error):
            raise lost(lease) from error
        raise


def _judge_batch(
    txn: Txn, study: Study, view: LockedView, held: Held, *, lease: Lease, batch: Batch
) -> Flushed:
    summary, time_total_s = held.summary, held.time_total_s
    if batch.results and held.flush_no == 0:
        summary = _supersede(txn, study, summary, lease=lease, batch=batch)

    due = due_results(study, lease, batch) if not held.is_invalidated else ()
    steps = {result.step for result in due}
    judged = _judge(txn, study, view, summary, lease=lease, batch=batch, due=steps)
    stored = judged.stored

    view.store_mean()
    summary = summary.add(stored, study.objective)

    if stored and stored[-1].time_total_s is not None:
        time_total_s = stored[-1].time_total_s
    ruled = batch.ruled if stored else None
    return Flushed(
        held,
        stored,
        summary,
        time_total_s,
        judged.verdict,
        ruled=ruled,
        undecided=judged.undecided,
        why=judged.why,
        resources=judged.resources,
    )


class _Judged(NamedTuple):
    stored: tuple[Result, ...]
    verdict: Verdict | None
    undecided: tuple[int, Undecided] | None
    why: str | None = None
    resources: Mapping[str, float] | None = None


def _judge(
    txn: Txn,
    study: Study,
    view: LockedView,
    summary: Summary,
    *,
    lease: Lease,
    batch: Batch,
    due: AbstractSet[int],
) -> _Judged:
    recent = _recent_results(txn, study, lease)
    undecided = why = asked = None
    for position, result in enumerate(batch.results, 1):
        recent.append(result)
        n_results = summary.n_results + position
        verdict = TRIAL_IS_DONE if result.is_last else None
        if _is_ruled(batch, result) or first_hit(
            study.rules, tuple(recent), n_results, objective=study.objective
        ):
            verdict = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        elif result.step in due:
            view.move_to(summary, batch.results[:position])
            decision = _ask_scheduler(study, view, lease=lease, result=result, batch=batch)
            if isinstance(decision, Undecided):
                undecided = undecided or (result.step, decision)
            else:
                verdict = _enter(txn, view, decision, lease=lease, result=result) or verdict
                if decision.verdict is not None:
                    why, asked = decision.why, decision.resources
        if verdict is not None:
            return _Judged(batch.results[:position], verdict, undecided, why, asked)
    return _Judged(batch.results, None, undecided)


def _is_ruled(batch: Batch, result: Result) -> bool:
    """Whether a custom rule, asked before this transaction, stops the trial at this result."""
    return batch.ruled is not None and batch.ruled.stops_at == result.step


def _recent_results(txn: Txn, study: Study, lease: Lease) -> deque[Result]:
    """
    Read the trial's newest live results that were stored before the batch.

    There are as many as the rule that looks back farthest compares with a new result.
    """
    recent: deque[Result] = deque(maxlen=longest_history(study.rules))
    if n := (recent.maxlen or 0) - 1:
        spans = results.spans(txn, study_id=study.id, trial_id=lease.trial_id)
        for span in results.last_spans(txn, spans, limit=n):
            recent.extend(map(results.read, results.page(txn, span, limit=n)))
    return recent


def _ask_scheduler(
    study: Study, view: LockedView, *, lease: Lease, result: Result, batch: Batch
) -> Decision | Undecided:
    """
    Judge a result that is due.

    `batch.answers` holds what a scheduler in the user's code has answered before this transaction.
    Other trials may have entered the rungs since. So an answer is valid only if the question is
    still the same under the locks.
    """
    oriented = study.objective.score(result.value)
    seed = trial_seed(study.seed, lease.number)
    is_nan = math.isnan(result.value)
    report = Report(result.step, oriented, is_nan, lease.bracket, lease.trial_id, seed)
    try:
        decision = study.scheduler.judge(report, view)
    except DecisionNeeded as needed:
        answer = (batch.answers or {}).get(needed.question)
        if answer is None:
            raise
        if isinstance(answer, Undecided):
            return answer
        decision = answer
    return decision.for_done_trial() if result.is_last else decision


def _enter(
    txn: Txn, view: LockedView, decision: Decision, *, lease: Lease, result: Result
) -> Verdict | None:
    """Record a decision's entry, if any, in its rung; return the decision's verdict."""
    if decision.entry is not None:
        key = decision.entry.rung
        after = rungs.record(
            txn,
            rung=view.locked[key],
            neighbours=view.beside(key),
            lease=lease,
            result=result,
            entry=decision.entry,
            action=decision.action,
            cutoff=decision.cutoff,
        )
        view.replace(key, after)
    return decision.verdict


def _supersede(txn: Txn, study: Study, summary: Summary, *, lease: Lease, batch: Batch) -> Summary:
    """
    Supersede earlier attempts' results from the batch's first step on; return the summary.

    A first attempt has nothing to supersede. If its first step does not follow `batch.after_step`,
    the step is stored.
    """
    first = batch.results[0]
    if lease.attempt == 1:
        if first.step != batch.after_step + 1:
            attempts.begin_at(txn, lease=lease, step=first.step)
        return summary
    attempts.begin_at(txn, lease=lease, step=first.step)
    if study.scheduler.mean_from is not None:
        means.forget(txn, lease=lease, step=first.step)
    return results.summary(
        txn, study_id=study.id, trial_id=lease.trial_id, objective=study.objective
    )


def next_step(study: Study, lease: Lease, batch: Batch) -> int | None:
    """Return the first decision step after a batch; None if the scheduler decides no more."""
    last = batch.results[-1].step if batch.results else batch.after_step
    return study.scheduler.next_decision_step(lease.bracket, last)


def refused(txn: Txn, *, lease: Lease, flush_no: int) -> Verdict | None:
    """
    Answer a flush that the fence has refused.

    Returns:
        The verdict with which the attempt has ended, if this flush was stored before; None if the
        attempt has ended without a verdict.

    Raises:
        LeaseLost: The attempt has lost its trial, and this flush was not stored.
    """
    ended = attempts.find(txn, trial_id=lease.trial_id, attempt_no=lease.attempt)
    if ended is None or ended.token != lease.token or ended.flush_no < flush_no:
        raise lost(lease)
    return verdict_of(ended)


def lost(lease: Lease) -> LeaseLost:
    """Make the error for an attempt that no longer holds its trial."""
    return LeaseLost(number=lease.number, attempt=lease.attempt)
