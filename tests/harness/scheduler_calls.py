"""Calls with results that a scheduler judges at a rung, and calls that may run at the same time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from fleet.trainables.scheduling import BetterHalf, Cup

from harness.actions import outcome_of
from harness.arrange import LEASE_S, RENEWAL_S, Run, SimulatedWorker, new_request, new_study, rows
from harness.asked_scheduler import Meanwhile, asked, sent
from studydb.db import Database
from studydb.domain.life.decisions import Answer
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import Reason, Status
from studydb.operations import control
from studydb.operations.finish import finish
from studydb.operations.give_up import give_up
from studydb.operations.invalidate import invalidate
from studydb.operations.promote import promote
from studydb.operations.recover import recover
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.schedulers import ASHA, HyperBand, MedianStopping, OneEpoch

Call = Callable[[Database], Any]

SCHEDULERS: dict[str, Any] = {
    "stopping": ASHA(max_t=9, reduction_factor=3),
    "stopping by Syne Tune's rule": ASHA(max_t=9, reduction_factor=2, rule="syne_tune"),
    "promotion": ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0),
    "promotion with an end game": ASHA(9, 1, 3, type="promotion", end_game=0.5),
    "HyperBand": HyperBand(max_t=9),
    "one-epoch": OneEpoch(i=1, top_k=2, max_t=9),
    "median stopping": MedianStopping(min_samples=1),
    "median stopping that pauses": MedianStopping(min_samples=1, hard_stop=False),
    "custom, by rungs that close": asked(Cup(milestones=(1, 3))),
    "custom, by medians": asked(BetterHalf(interval=1)),
}
"""Schedulers whose first rung is at step 1, and whose second rung, if any, is at step 2 or 3."""

JUDGED = ("report", "finish", "report two rungs")
"""Calls with results that the scheduler judges; tests pair each with calls of `OTHERS`."""

OTHERS = (
    *("report again", "report a tie", "finish another trial", "fail"),
    *("stop", "pause", "invalidate", "invalidate the best", "reinstate the best"),
    *("pause the study", "stop the study", "extend", "recover", "renew", "promote"),
)
"""Calls that may run at the same time as one of `JUDGED`."""

STATUSES = {"pause the study": Status.PAUSED, "stop the study": Status.STOPPED}

DECIDED = (
    "SELECT status, num_trials, next_draw FROM study WHERE id = {study}",
    """
    SELECT number, state, reason, paused_by, verdict, verdict_reason, n_results, attempt
    FROM trial WHERE study_id = {study} ORDER BY number
    """,
    """
    SELECT t.number, g.step, e.ordinal, e.score, e.ranked, e.action, e.waiting, e.cutoff,
        g.closed_ordinal, g.n_ranked, g.cut_rank, g.is_over
    FROM rung g JOIN rung_entry e ON e.rung_id = g.id JOIN trial t ON t.id = e.trial_id
    WHERE g.study_id = {study} ORDER BY g.step, g.bracket, e.ordinal
    """,
    """
    SELECT kind, actor, count(*) FROM event
    WHERE study_id = {study} AND kind <> 'scheduler idle' GROUP BY kind, actor ORDER BY kind, actor
    """,
)
"""Queries that read the study, trials, rungs, and counts of events other than "scheduler idle"."""


class AtRung:
    """
    Five trials: two (values 0.5 and 0.25) have entered the first rung, three have no result yet.

    Attributes:
        now: The time that `clock` returns.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        database.clock = self.clock
        self._database = database
        self.study = new_study(database, scheduler=SCHEDULERS[name], num_trials=5)
        self.worker = SimulatedWorker(database, self.study)
        for value in (0.5, 0.25):
            run = self.worker.take()
            if run.report(value).verdict is not None:
                run.finish(outcome=Reason.PREEMPTED)
        self._first, self._other, self._third = (self._take_new() for _ in range(3))
        self._batch = self._first.batch(0.3)

    def clock(self) -> datetime:
        return self.now

    def _take_new(self) -> Run:
        run = self.worker.ask()
        assert run is not None
        return run

    def call(self, name: str) -> Call:
        """Arrange rows for a call, and return it; "report again" sends the batch of "report"."""
        if name in ("recover", "reinstate the best"):
            self._prepare(name)
        calls: dict[str, Call] = {
            "report": self._reporting(self._first, self._batch),
            "report again": self._reporting(self._first, self._batch),
            "report two rungs": self._reporting(self._first, self._first.batch(0.3, 0.3, 0.2)),
            "report a tie": self._reporting(self._other, self._other.batch(0.3)),
            "finish": self._finishing(self._first, Reason.COMPLETED, 0.3),
            "finish another trial": self._finishing(self._third, Reason.COMPLETED, 0.4, 0.3, 0.2),
            "fail": self._finishing(self._third, Reason.FAILED),
            "extend": self._extending(),
            "recover": lambda over: recover(over, self.study),
            "renew": lambda over: renew(
                over, self.study, worker_id=self.worker.id, held=[self._first.lease]
            ),
            "promote": self._promoting(),
        }
        return calls.get(name) or self._asking_for(name)

    def _prepare(self, name: str) -> None:
        if name == "recover":  # the leases of all trials that run have expired
            self.now += timedelta(seconds=LEASE_S + 1)
            recover(self._database, self.study)
            self.now += timedelta(seconds=RENEWAL_S)
        else:
            invalidate(self._database, self.study, [1], new_request(), reason="wrong labels")

    def _reporting(self, run: Run, batch: Any) -> Call:
        call = partial(report, study=self.study, lease=run.lease)
        return lambda over: sent(self.study, lambda whole: call(over, batch=whole), batch)

    def _finishing(self, run: Run, outcome: Reason, *values: float) -> Call:
        call = partial(finish, study=self.study, lease=run.lease, outcome=outcome)
        batch = run.batch(*values)
        return lambda over: sent(self.study, lambda whole: call(over, batch=whole), batch)

    def _extending(self) -> Call:
        request = new_request()
        return lambda over: control.extend(over, self.study, request, n_more=1)

    def _promoting(self) -> Call:
        claimant = self.worker.claimant()
        return lambda over: promote(over, self.study, claimant)

    def _asking_for(self, name: str) -> Call:
        """A person's request about the trial that reports, the best trial or the study."""
        request = new_request()
        if name in STATUSES:
            return lambda over: control.set_status(over, self.study, STATUSES[name], request)
        numbers = [1] if name.endswith("the best") else [self._first.lease.number]
        what = name.split(maxsplit=1)[0]
        if what in ("invalidate", "reinstate"):
            why = {"reason": "wrong labels", "undo": what == "reinstate"}
            return lambda over: invalidate(over, self.study, numbers, request, **why)  # type: ignore[arg-type]
        return lambda over: getattr(control, what)(over, self.study, numbers, request)

    def meanwhile(self) -> Meanwhile:
        """Return a `Meanwhile` by which all later calls ask the user's code."""
        scheduler: Any = self.study.scheduler
        asks = Meanwhile(scheduler.ask)
        self.study = replace(self.study, scheduler=scheduler.asked_by(asks))
        return asks

    def rows(self) -> tuple[Any, ...]:
        """Give up, promote and claim trials, and renew leases; then read the rows of `DECIDED`."""
        for _ in range(4):
            give_up(self._database, self.study)
            promote(self._database, self.study, self.worker.claimant())
            self.worker.claim()  # while a trial is PENDING, no trial is promoted
        held = [self._first, self._other, self._third]
        self.worker.renew(*held)  # stores the requests of people as verdicts
        queries = (sql.format(study=self.study.id) for sql in DECIDED)
        return tuple(rows(self._database, sql) for sql in queries)


def in_order(
    database: Database, name: str, calls: Sequence[str], order: Sequence[int]
) -> tuple[Any, ...]:
    """Make calls on a new study, one after another; return `told` of each answer, and the rows."""
    situation = AtRung(database, name)
    made = [situation.call(each) for each in calls]
    answers = {place: outcome_of(partial(made[place], database)) for place in order}
    return [told(answers[place]) for place in sorted(answers)], situation.rows()


def told(answer: Any) -> Any:
    """What an answer says about the trial, or the class of a refusal; None for other answers."""
    if isinstance(answer, Answer):
        return answer.verdict
    if isinstance(answer, Ending):
        return answer.state, answer.reason
    return answer if isinstance(answer, type) else None
