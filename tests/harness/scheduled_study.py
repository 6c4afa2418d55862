"""
A study that runs in a database, by the real operations in a random order, until it is FINISHED.

Workers acquire trials, report in batches, save, pause and finish, as real workers do. Tests may add
mishaps: an attempt fails, is given back or is lost; a batch is sent again; a person steers,
enqueues or invalidates trials. Tests may also add cuts: a call is cut at a COMMIT and sent again.
`run_in_threads` lets workers run at the same time, without mishaps or cuts.
"""

import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

from harness.arrange import (
    LEASE_S,
    RENEWAL_S,
    Run,
    SimulatedWorker,
    new_request,
    new_study,
    retry_while_busy,
    rows,
    run_together,
)
from harness.cut_commits import cut
from studydb.db import Database, connect
from studydb.domain.errors import BudgetSpent, NotAllowed, StorageTransient, UnknownTrial
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import FINAL, Reason, State, Status
from studydb.domain.scheduling import Scheduler
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.invalidate import invalidate
from studydb.operations.reads import list_trials
from studydb.operations.recover import recover
from studydb.operations.study_progress import StudyProgress, read_progress

Answered = TypeVar("Answered")

Curve = Callable[[int, int], float]
"""A function of a trial's number and a step; it returns the value that the trial reports."""

MOST_TURNS = 20_000
LONGEST_TRIAL = 14
"""A trial completes after the first batch that reaches this step, unless it has ended before."""


def curve(number: int, step: int) -> float:
    """The value of a trial at a step: NaN, or a multiple of 1/16 that other trials often share."""
    rng = Random(number * 7919)
    if rng.random() < 0.04 and step > 2:
        return math.nan
    return (rng.randint(0, 20) + 16 // step) / 16


class ScheduledStudy:
    """
    A study, its simulated workers, and the attempts that they hold.

    Attributes:
        mishaps: The probability that a step of the loop in `run` is a mishap instead of work.
        cuts: The probability that `send` chooses a COMMIT at which a call is cut.
        skips: Whether attempts sometimes skip a step.
    """

    def __init__(
        self,
        database: Database,
        scheduler: Scheduler,
        *,
        seed: int = 0,
        num_trials: int = 12,
        mishaps: float = 0.0,
        cuts: float = 0.0,
        curve: Curve = curve,
        skips: bool = True,
        **options: Any,
    ) -> None:
        self.database, self.rng = database, Random(seed)
        self._cutting = Random(f"cuts {seed}")  # so that cuts do not change what `rng` chooses
        self.mishaps, self.cuts, self.curve, self.skips = mishaps, cuts, curve, skips
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        database.clock = lambda: self.now
        options = {"max_failures": 1} | options
        self.study = new_study(database, scheduler=scheduler, num_trials=num_trials, **options)
        self.workers = [SimulatedWorker(database, self.study) for _ in range(2)]
        self.acquirers = [
            Acquirer(database, self.study, worker_id=worker.id, lease_s=LEASE_S)
            for worker in self.workers
        ]
        self.held: list[Run] = []

    def run(self, *, slots: int = 3) -> None:
        """Run the study until it is FINISHED; fail if no trial can run, or after `MOST_TURNS`."""
        for _ in range(MOST_TURNS):
            if self.rng.random() < self.mishaps:
                self._disturb()
            elif len(self.held) < slots and self._acquire():
                continue
            elif self.held:
                self._train(self.rng.choice(self.held))
            elif self._is_over():
                return
        raise AssertionError(f"The study does not end: {self.progress}")

    @property
    def progress(self) -> StudyProgress:
        return read_progress(self.database, self.study)

    def _is_over(self) -> bool:
        """Whether the study is FINISHED; if no trial can be claimed, end back-offs and leases."""
        progress = self.progress
        if progress.status is Status.FINISHED:
            return True
        waits = progress.counts.pending or progress.counts.running
        assert waits or progress.can_claim, f"No trial can run, but the study goes on: {progress}"
        if not progress.can_claim:
            self._recover()
        return False

    # --- what workers do

    def send(self, call: Callable[[], Answered]) -> Answered:
        """
        Call an operation; with the probability `cuts`, cut it at one of its first COMMITs.

        A call that was cut is made again. A call that ends before the chosen COMMIT is not cut.
        """
        if self._cutting.random() < self.cuts:
            when, nth = self._cutting.choice(["before", "after"]), self._cutting.randint(1, 4)
            try:
                with cut(self.database, when, nth=nth):
                    return call()
            except StorageTransient:
                pass
        return call()

    def _acquire(self) -> bool:
        place = self.rng.randrange(len(self.workers))
        acquirer = self.acquirers[place]
        acquirer._watch.forget()  # otherwise the clock decides whether an idle worker looks
        claimed = self.send(acquirer.acquire)
        if claimed is None:
            return False
        self.held.append(Run(self.workers[place], claimed))
        return True

    def _train(self, run: Run) -> None:
        """Report one to three steps in a batch; end the attempt if it must end, else maybe save."""
        first = run.after_step + self.rng.choice([1, 1, 1, 1 + self.skips])
        values = [self.curve(run.lease.number, first + n) for n in range(self.rng.randint(1, 3))]
        batch = run.batch(*values, first=first)
        answer = self.send(lambda: run.send(batch))
        assert run.send(batch) == answer  # a duplicate request gets the stored answer
        if answer.verdict is not None:
            self._end(run, Reason.PREEMPTED)
        elif run.after_step >= LONGEST_TRIAL:
            self._end(run, Reason.COMPLETED)
        elif self.rng.random() < 0.4:
            run.save()

    def _end(self, run: Run, outcome: Reason) -> None:
        if self.rng.random() < 0.5:
            last = self._last_step(run)
            if last:
                run.save(run.checkpoint(last))
        self.held.remove(run)
        self.send(lambda: run.finish(outcome=outcome))

    def _last_step(self, run: Run) -> int:
        sql = f"SELECT coalesce(last_step, 0) FROM trial WHERE id = {run.lease.trial_id}"
        return int(rows(self.database, sql)[0][0])

    def run_in_threads(self, storage: str, *, workers: int = 4) -> None:
        """Run the study until it is FINISHED, with several workers at the same time."""

        def work() -> None:
            with closing(connect(storage)) as database:
                self._work(database)

        run_together([work] * workers)

    def _work(self, database: Database) -> None:
        worker = retry_while_busy(lambda: SimulatedWorker(database, self.study))
        acquirer = Acquirer(database, self.study, worker_id=worker.id, lease_s=LEASE_S)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            claimed = retry_while_busy(acquirer.acquire)
            if claimed is not None:
                _run_to_its_end(Run(worker, claimed), self.curve)
            elif retry_while_busy(acquirer.look).status is Status.FINISHED:
                return
            else:
                time.sleep(0.01)
        raise AssertionError("The study does not end.")

    # --- mishaps

    def _disturb(self) -> None:
        what = self.rng.choice(
            [
                *("fail", "give back", "lose", "stop", "pause", "resume", "enqueue", "extend"),
                *("invalidate", "reinstate", "send again", "recover"),
            ]
        )
        if what in ("fail", "give back") and self.held:
            outcome = Reason.FAILED if what == "fail" else Reason.PREEMPTED
            self._end(self.rng.choice(self.held), outcome)
        elif what == "lose" and self.held:
            self.held.remove(self.rng.choice(self.held))
        elif what in ("stop", "pause", "resume"):
            self._steer(what)
        elif what in ("invalidate", "reinstate"):
            self._invalidate(undo=what == "reinstate")
        elif what == "send again" and self.held:
            self._send_again(self.rng.choice(self.held))
        elif what == "enqueue":
            self._request(lambda request: enqueue(self.database, self.study, {}, request))
        elif what == "extend" and self.rng.random() < 0.3:
            self._request(
                lambda request: control.extend(self.database, self.study, request, n_more=1)
            )
        elif what == "recover" and not self.held:
            self._recover()

    def _steer(self, what: str) -> None:
        alive = [one for one in list_trials(self.database, self.study) if one.state not in FINAL]
        if alive:
            operation, number = getattr(control, what), self.rng.choice(alive).number
            self._request(lambda sent: operation(self.database, self.study, [number], sent))

    def _invalidate(self, *, undo: bool) -> None:
        number = self.rng.randrange(len(list_trials(self.database, self.study)) + 1)
        given = {"reason": "wrong labels", "undo": undo}
        self._request(lambda sent: invalidate(self.database, self.study, [number], sent, **given))

    def _send_again(self, run: Run) -> None:
        """Send the last batch of an attempt again, if any; other calls may have followed it."""
        if run.last is not None:
            run.send(run.last)

    def _request(self, call: Callable[..., Any]) -> None:
        request = new_request()
        with suppress(BudgetSpent, NotAllowed, UnknownTrial):
            self.send(lambda: call(request))

    def _recover(self) -> None:
        for _ in range(2):
            self.now += timedelta(seconds=LEASE_S + RENEWAL_S + 400)
            self.send(lambda: recover(self.database, self.study))

    # --- what must hold at the end

    def paused(self) -> list[tuple[int, str | None]]:
        """The number and `paused_by` of each PAUSED trial."""
        found = list_trials(self.database, self.study)
        return [(one.number, one.paused_by) for one in found if one.state is State.PAUSED]

    def results_after_a_decision(self) -> list[tuple[Any, ...]]:
        """The results that attempts stored for steps after the decision to stop or pause them."""
        return rows(
            self.database,
            "SELECT r.trial_id, r.step FROM rung_entry e "
            "JOIN result r ON r.trial_id = e.trial_id AND r.attempt = e.attempt "
            f"WHERE r.study_id = {self.study.id} AND r.step > e.step "
            f"AND e.action <> '{Action.CONTINUE}'",
        )


def _run_to_its_end(run: Run, curve: Curve) -> None:
    """Report step by step until the scheduler stops or pauses the trial, or it completes."""
    while run.after_step < LONGEST_TRIAL:
        batch = run.batch(curve(run.lease.number, run.after_step + 1))
        if retry_while_busy(lambda batch=batch: run.send(batch)).verdict is not None:  # type: ignore[misc]
            retry_while_busy(lambda: run.finish(outcome=Reason.PREEMPTED))
            return
    retry_while_busy(run.finish)
