"""
Count what trials spend, and stop the study, or a trial, that has reached a limit.

Transactions that count spending lock the study's row, so each of them reads the exact sums. The
counter shard is written last, by `Charge.store`. A study never gets or loses a limit, so the
caller's `study` says whether the study's row must be read and locked. A person may have changed a
limit's value since the caller read `study`, so the values are read from the study's row.
"""

import shlex
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import Struct

from studydb.db import Database, Txn
from studydb.domain.errors import NotAllowed
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.plateau import BestValues, Plateau
from studydb.domain.life.rules import rules_of_study
from studydb.domain.life.states import Reason, Status
from studydb.domain.limits import Spending
from studydb.domain.metrics import Result
from studydb.domain.records import Lease, Study
from studydb.store import counters, events
from studydb.store import results as store_of_results
from studydb.store import spending as store
from studydb.store.spending import LimitedStudy

NOTHING = Spending()
_TIMED_OUT = Verdict(Action.STOP, Reason.TIMED_OUT, DecidedBy.LIMIT)
_SPENT = Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.LIMIT)


class Charge(Struct, frozen=True):
    """
    What a transaction adds to the spending of a study.

    Attributes:
        is_spent: Whether the study was stopped, by this transaction or an earlier one, because of a
            limit or of a rule that stops the whole study.
        timed_out: The ids of the trials whose running time has reached its limit.
    """

    spending: Spending = NOTHING
    is_spent: bool = False
    timed_out: frozenset[int] = frozenset()

    def verdict(self, trial_id: int, known: Verdict | None) -> Verdict | None:
        """Return the verdict on a trial that has flushed; see `within_time` for `known`."""
        known = self.within_time(trial_id, known)
        return known or (_SPENT if self.is_spent else None)

    def within_time(self, trial_id: int, known: Verdict | None) -> Verdict | None:
        """
        Return the verdict on a trial that may have run for too long.

        Args:
            known: The verdict of a scheduler, a rule or the trial, or a person's request. If the
                trial has run for too long, only a stop after which results are refused is kept.
                Any other verdict, also a pause, becomes TIMED_OUT: after a pause, the trial would
                reach the limit again at once.
        """
        if trial_id not in self.timed_out:
            return known
        is_ended = known is not None and known.action is Action.STOP and known.refuses_results
        return known if is_ended else _TIMED_OUT

    def store(self, txn: Txn, study: Study, *, key: int | str) -> None:
        """Add the spending to a counter shard; call this last. For `key` see `counters.move`."""
        if self.spending != NOTHING:
            counters.spend(txn, study_id=study.id, key=key, spending=self.spending)


def charge(
    txn: Txn,
    study: Study,
    *,
    trial_ids: Sequence[int],
    lease: Lease | None = None,
    results: Sequence[Result] = (),
    are_alive: bool = True,
    are_valid: bool = True,
) -> Charge:
    """
    Add up the cost and number of `results`, and the trials' running time that is not stored yet.

    If a limit counts time and `are_alive` is True, the trials' running times are stored.

    If the study has reached a limit, or has met a rule that stops the whole study, the study is
    stopped and the reason is stored.

    Args:
        trial_ids: The trials; the caller has locked their rows.
        lease: The lease of the attempt that has reported `results`; None without results.
        results: The results that the transaction stores.
        are_alive: Whether the trials have run until now. The time of a lost attempt ends with its
            last flush or renewal, which has counted that time.
        are_valid: False if a person has invalidated the trial of the results. The rules that stop
            the whole study do not compare such results.
    """
    by_rule = study.stops_by_rule and lease is not None and bool(results) and are_valid
    if not (study.limits.exist or by_rule):
        return Charge()
    limited = store.read(txn, study_id=study.id, lock=study.limits.count_spending or by_rule)
    limits, time_s, timed_out = limited.limits, 0.0, set()
    times = store.running_times(txn, trial_ids=trial_ids) if limits.count_time else []
    for time in times:
        if are_alive:
            store.store_running_time(txn, time)
            time_s += time.since_s
        total_s = time.total_s if are_alive else time.counted_s
        if limits.trial_time_limit_s is not None and total_s >= limits.trial_time_limit_s:
            timed_out.add(time.trial_id)

    spending = NOTHING
    if limits.count_spending:
        cost = limits.cost_of(results, study.objective)
        spending = Spending(cost, len(results), time_s)
    is_spent = limited.is_spent or _stop_if_spent(txn, study, limited, spending)
    if by_rule and lease is not None and limited.status is not Status.STOPPED:
        new = _of_new_steps(txn, study, lease, results)
        is_spent = _stop_by_rule(txn, study, limited.best, new) or is_spent
    return Charge(spending, is_spent, frozenset(timed_out))


def stop_if_too_old(database: Database, study: Study) -> None:
    """Stop a RUNNING study that has reached its `time_limit_s`."""
    if study.time_limit_s is None:
        return
    with database.begin(write=False) as txn:
        limited = store.read(txn, study_id=study.id)
        limit_s = limited.limits.time_limit_s
    if limited.status is Status.RUNNING and limit_s is not None and limited.age_s >= limit_s:
        with database.begin() as txn:
            limited = store.read(txn, study_id=study.id, lock=True)
            if limited.status is Status.RUNNING:  # no person has paused it meanwhile
                _stop_if_spent(txn, study, limited, NOTHING)


def check_limits(txn: Txn, study: Study) -> None:
    """
    Refuse to resume a study that would be stopped again at once.

    Raises:
        NotAllowed: The study has reached one of its limits.
    """
    if not study.limits.exist:
        return
    why = _reached(txn, study, store.read(txn, study_id=study.id, lock=True), NOTHING)
    if why is not None:
        key = why.partition(" ")[0]
        raise NotAllowed(
            f"Study {study.name!r} cannot be resumed: its {why}. Raise the limit first: "
            f"`studydb set {shlex.quote(study.name)} {key}=…`."
        )


def _stop_if_spent(txn: Txn, study: Study, limited: LimitedStudy, spending: Spending) -> bool:
    """Stop a study if its stored sums plus `spending` reach a limit; True if this stopped it."""
    if limited.status is Status.STOPPED:
        return False
    why = _reached(txn, study, limited, spending)
    return why is not None and _stop(txn, study, why)


def _of_new_steps(
    txn: Txn, study: Study, lease: Lease, results: Sequence[Result]
) -> Sequence[Result]:
    """
    Leave out the results of steps that an earlier attempt of the trial has reported.

    Training often gives the same value again. If such a step counted twice, a killed process could
    make a plateau, and so stop the study.
    """
    if lease.attempt == 1:
        return results
    known = store_of_results.highest_step(txn, study_id=study.id, lease=lease)
    return [result for result in results if result.step > known]


def _stop_by_rule(
    txn: Txn, study: Study, best: Sequence[BestValues], results: Sequence[Result]
) -> bool:
    """
    Update the stored best values with results, and stop the study if a rule is met.

    The rules that stop the whole study compare these best values.
    """
    after, met = [], None
    rules = rules_of_study(study.rules)
    for rule, known in zip_longest(rules, best[: len(rules)], fillvalue=BestValues()):
        assert isinstance(rule, Plateau)
        values, stops = rule.after(known, results, objective=study.objective)
        after.append(values)
        met = met or (rule if stops else None)
    store.store_best(txn, study_id=study.id, best=after)
    return met is not None and _stop(txn, study, f"rule {met} is met")


def _stop(txn: Txn, study: Study, why: str) -> bool:
    """Stop the study because of a limit or a rule; False if it was stopped before."""
    if not store.stop(txn, study_id=study.id, why=why):
        return False
    kind, data = EventKind.STUDY_STOPPED, {"reason": why}
    events.append(txn, study_id=study.id, kind=kind, actor=Actor.LIMIT, data=data)
    return True


def _reached(txn: Txn, study: Study, limited: LimitedStudy, spending: Spending) -> str | None:
    limits, spent = limited.limits, spending
    if limits.count_spending:
        spent = spent.plus(counters.spent(txn, study_id=study.id))
    return limits.reached(spent, age_s=limited.age_s)


def describe(txn: Txn, study: Study) -> list[str]:
    """Describe what each limit of the study allows and what is used; empty without limits."""
    if not study.limits.exist:
        return []
    limited = store.read(txn, study_id=study.id)
    spent = counters.spent(txn, study_id=study.id)
    return limited.limits.described(spent, age_s=limited.age_s)
