"""
A study in plain Python: what operations must answer, and which rows they must leave in a database.

An operation is a method of `Model` or a function of a module `model_*`; it changes lists and dicts,
without transactions. From `studydb`, the model uses only types, and functions that write options or
amounts as texts or dicts, such as `to_json`.
"""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from harness.model_clones import release
from harness.model_exits import judge_exit
from harness.model_resources import ModelOffer, ModelResources
from harness.model_rows import (
    ENDED,
    FINAL_DECIDERS,
    ModelAttempt,
    ModelCheckpoint,
    ModelTrial,
    ModelUpload,
    ModelWorker,
)
from harness.model_schedulers import new_judge, promote
from harness.model_spending import SPENT, TIMED_OUT, ModelSpending
from harness.model_steering import check_steering, steer, wake
from harness.model_validity import invalidate, reinstate
from studydb.domain.errors import LeaseLost, NotAllowed, UnknownTrial
from studydb.domain.failures import Failure
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy, Request


class Model:
    """A study and its clock `now`; all times are seconds since the study was created."""

    def __init__(self, spec: NewStudy) -> None:
        self.spec = spec
        self.now = 0.0
        self.status = Status.RUNNING
        self.num_trials = spec.num_trials
        self.next_draw = 0
        self.trials: list[ModelTrial] = []
        self.workers: dict[str, ModelWorker] = {}
        self.checkpoints: list[ModelCheckpoint] = []
        self.uploads: list[ModelUpload] = []
        self.keep = spec.keep
        self.other: ModelTrial | None = None  # the trial of another study
        self.foreign: list[ModelCheckpoint] = []  # the checkpoints of `other`
        self.other_is_closing = False
        self.sent_to_other: set[str] = set()
        self.judge = new_judge(spec)
        self.spending = ModelSpending(spec)
        self.resources = ModelResources(self)
        self.limit: str | None = None  # why a limit has stopped the study
        self.events: list[dict[str, Any]] = []
        # The key is a claim's token. The value is the number of the only trial that this claim may
        # take; None if it must take no trial. Other claims take the first trial that fits.
        self.picks: dict[str, int | None] = {}
        self._record_event("created", spec.created_by)

    # --- workers

    def register(
        self, *, uuid: str, pid: int, lease_s: float, offers: Mapping[str, float] | None = None
    ) -> None:
        if uuid not in self.workers:
            self.workers[uuid] = ModelWorker(uuid, pid, lease_s, self.now)
            if offers is not None:
                self.resources.offers[uuid] = ModelOffer(offers)

    def promote(self, worker: str, *, token: str) -> bool:
        """
        Do what the scheduler wants of a free worker; tell whether a trial is promoted.

        If an earlier send of the request has promoted a trial, do nothing, and return True.
        """
        return bool(self._recorded(token)) or promote(self, token, worker)

    def claim(self, worker: str, *, token: str) -> ModelAttempt | None:
        self.resources.look(worker)
        if known := self.attempt_of(token):
            if known.ended_at is None:
                self.resources.claimed(worker, self.trials[known.number])
            return self._answered_again(known)
        waiting = self.resources.startable(worker, self.runnable)
        if token in self.picks:
            waiting = [trial for trial in waiting if trial.number == self.picks[token]]
        if not waiting or not self.has_room:
            return None
        self.resources.claimed(worker, waiting[0])
        return self._begin(waiting[0], worker, token)

    def _answered_again(self, known: ModelAttempt) -> ModelAttempt | None:
        if known.ended_at is not None:
            return None
        self.resources.started(known, self.trials[known.number])
        return known

    def ask(self, worker: str, *, token: str) -> ModelAttempt | None:
        if known := self.attempt_of(token):
            return self._answered_again(known)
        if self.status is not Status.RUNNING or not self.is_open or not self.has_room:
            return None
        if (names := self.resources.names(worker)) is not None and "" not in names:
            return None
        trial = ModelTrial(len(self.trials), "searcher", self.now, draw=self.next_draw)
        trial.bracket = self.judge.bracket_of(self.next_draw)
        self.next_draw += 1
        self.trials.append(trial)
        return self._begin(trial, worker, token)

    def report(
        self, token: str, *, flush_no: int, after: int, results: tuple[Result, ...]
    ) -> tuple[Verdict | None, int | None]:
        attempt, trial = self._of(token)
        due = self.judge.next_decision(trial.bracket, results[-1].step if results else after)
        if trial.held is not attempt:
            self._refuse(attempt, flush_no)
            return attempt.verdict, due
        if trial.refuses_results or flush_no <= trial.flush_no:
            return trial.verdict, due
        decided, stored = self._store(trial, attempt, after, results)
        trial.verdict = self._charge(trial, stored, decided) or self._asked(trial)
        trial.flush_no = flush_no if results else trial.flush_no
        self._renew(trial)
        self.resources.carry_out(trial, attempt)
        return trial.verdict, due

    def finish(
        self,
        token: str,
        outcome: Reason,
        *,
        flush_no: int,
        after: int,
        results: tuple[Result, ...],
        failure: Failure | None = None,
    ) -> Ending | None:
        attempt, trial = self._of(token)
        if trial.held is not attempt:
            self._refuse(attempt, flush_no)
            return None
        decided, stored = None, results[:0]
        if not trial.refuses_results and flush_no > trial.flush_no:
            decided, stored = self._store(trial, attempt, after, results)
        self._charge(trial, stored)
        given: Any = {"flush_no": flush_no, "actor": "worker", "failure": failure}
        ending = self._end(trial, outcome, decided, **given)
        self.resources.carry_out(trial, attempt)
        return ending

    def renew(self, worker: str, tokens: list[str]) -> dict[str, Verdict | None]:
        self.workers[worker].seen_at = self.now
        held = [trial for a, trial in map(self._of, tokens) if trial.held is a]
        if held:
            self.spending.add(held, (), self.now)
            self._stop_if_spent()
        for trial in held:
            self._renew(trial)
            if not trial.refuses_results:
                timed_out = TIMED_OUT if self.spending.is_timed_out(trial) else None
                trial.verdict = timed_out or self._asked(trial)
        return {trial.attempts[-1].token: trial.verdict for trial in held}

    def record_event(self, token: str, kind: str, *, once: str) -> None:
        if not self._recorded(once):
            attempt, trial = self._fence(token)
            self._renew(trial)
            self._record_event(kind, "worker", attempt=attempt, token=once, data={})

    def leave(self, worker: str) -> None:
        known = self.workers[worker]
        if known.ended_at is None:
            known.seen_at = known.ended_at = self.now

    def drain(self, worker: str, request: Request) -> None:
        if not self._recorded(request.token):
            self.workers[worker].drain()
            self._record_event("drained", request.actor, token=request.token)

    # --- sweeps

    def recover(self) -> int:
        return run_to_end(self.recover_in_turns())

    def recover_in_turns(
        self, skipped: frozenset[int] = frozenset(), skipped_later: frozenset[int] = frozenset()
    ) -> Generator[None, None, int]:
        """
        End back-offs, mark suspects and end lost attempts; return how many were lost.

        If the study is RUNNING, trials that were paused together with it become PENDING again.

        At each `yield` a transaction has ended, and other actions may run.

        Args:
            skipped: The numbers of the trials that other actions lock during the first transaction.
            skipped_later: The same for the transactions that end the lost attempts.
        """
        for trial in self.trials:
            if trial.number not in skipped:
                self._sweep(trial)
        n = 0
        for attempt in [trial.attempts[-1] for trial in self.trials if self._is_lost(trial)]:
            yield
            trial = self.trials[attempt.number]
            if trial.held is attempt and self._is_lost(trial) and trial.number not in skipped_later:
                n += self._end_as_lost(trial)
        return n

    def recover_host(self, dead: frozenset[int]) -> int:
        return run_to_end(self.recover_host_in_turns(dead))

    def recover_host_in_turns(
        self, dead: frozenset[int], skipped_later: frozenset[int] = frozenset()
    ) -> Generator[None, None, int]:
        n = 0
        for attempt in [one.held for one in self.trials if one.held]:
            if attempt.worker.pid in dead:
                yield
                trial = self.trials[attempt.number]
                if trial.held is attempt and trial.number not in skipped_later:
                    n += self._end_as_lost(trial)
        return n

    def _sweep(self, trial: ModelTrial) -> None:
        if trial.ready_at is not None and trial.ready_at <= self.now:
            trial.ready_at = None
        if trial.held and trial.suspect_at is None and self._expiry(trial) < self.now:
            trial.suspect_at = self.now
        wake(self, trial)

    def _is_lost(self, trial: ModelTrial) -> bool:
        if trial.held is None or trial.suspect_at is None or trial.lease_s is None:
            return False
        waited_s = self.now - trial.suspect_at
        return self._expiry(trial) < self.now and waited_s * 4.5 >= trial.lease_s

    def _end_as_lost(self, trial: ModelTrial) -> int:
        self._stop_if_spent()
        self._end(trial, Reason.LOST, None, flush_no=trial.flush_no, actor="sweep")
        return 1

    # --- people

    def invalidate(self, numbers: list[int], request: Request, *, reason: str, undo: bool) -> None:
        """Invalidate trials, or undo their invalidation."""
        if self._recorded(request.token):
            return
        numbers = sorted(set(numbers))
        if any(number >= len(self.trials) for number in numbers):
            raise UnknownTrial
        trials = [self.trials[number] for number in numbers]
        if undo and any(trial.invalidated_at is None for trial in trials):
            raise NotAllowed
        for trial in trials:
            (reinstate if undo else invalidate)(self, trial)
        kind, data = ("reinstated" if undo else "invalidated"), {"reason": reason}
        data |= {"numbers": numbers}
        self._record_event(kind, request.actor, token=request.token, data=data)

    def steer(
        self,
        kind: str,
        numbers: list[int],
        request: Request,
        changes: dict[str, float] | None = None,
    ) -> None:
        """
        Pause, resume or stop trials; `kind` is "paused", "resumed" or "stopped".

        Args:
            changes: New values of parameters for trials that are resumed.
        """
        if self._recorded(request.token):
            return
        numbers = sorted(set(numbers))
        check_steering(self, kind, numbers, changes=bool(changes))
        for number in numbers:
            trial = self.trials[number]
            trial.changed = {**(trial.changed or {}), **changes} if changes else trial.changed
            steer(self, trial, kind)
        data = {"numbers": numbers} | ({"params": changes} if changes else {})
        self._record_event(kind, request.actor, token=request.token, data=data)

    def set_status(self, status: Status, request: Request) -> None:
        run_to_end(self.set_status_in_turns(status, request))

    def set_status_in_turns(
        self, status: Status, request: Request, skipped: frozenset[int] = frozenset()
    ) -> Generator[None, None, None]:
        """
        Set the status. For RUNNING, a second transaction wakes trials that the study has paused.

        Args:
            skipped: The numbers of the trials that other actions lock during the second
                transaction.
        """
        if not self._recorded(request.token):
            if status is Status.RUNNING and self.spending.reached():
                raise NotAllowed
            self.status, self.limit = status, None
            self._record_event(f"study {status.lower()}", request.actor, token=request.token)
        if status is Status.RUNNING:
            yield
            for trial in self.trials:
                if trial.number not in skipped:
                    wake(self, trial)

    def extend(self, request: Request, *, by: int) -> int:
        if recorded := self._recorded(request.token):
            return int(recorded["data"]["num_trials"])
        if self.num_trials is None:
            raise NotAllowed
        self.num_trials += by
        self._record_event(
            "extended", request.actor, token=request.token, data={"num_trials": self.num_trials}
        )
        return self.num_trials

    def set_limits(self, request: Request, limits: dict[str, Any]) -> None:
        if not self._recorded(request.token):
            self.spending.limits |= limits
            data = json.loads(json.dumps(limits))
            self._record_event("limits set", request.actor, token=request.token, data=data)

    # --- the state of the study

    @property
    def running(self) -> list[ModelTrial]:
        return [trial for trial in self.trials if trial.state is State.RUNNING]

    @property
    def runnable(self) -> list[ModelTrial]:
        """The trials that claims may take, in order, if `max_concurrent` and resources allow it."""
        if self.status is not Status.RUNNING:
            return []
        pending = (trial for trial in self.trials if trial.state is State.PENDING)
        waiting = [trial for trial in pending if trial.ready_at is None]
        return sorted(waiting, key=lambda trial: (trial.priority, trial.number))

    @property
    def has_room(self) -> bool:
        limit = self.spec.max_concurrent
        return limit is None or len(self.running) < limit

    @property
    def is_open(self) -> bool:
        return self.num_trials is None or self.n_counted < self.num_trials

    @property
    def n_counted(self) -> int:
        """The number of trials that count for `num_trials`: all but clones."""
        return sum(trial.parent is None for trial in self.trials)

    @property
    def best(self) -> list[int]:
        """The numbers of all valid trials that have a value other than NaN, best first."""
        ranked = {
            trial.number: self.judge.score(value)
            for trial in self.trials
            if (value := self.judge.best_of(trial.live)[1]) is not None
            and not math.isnan(value)
            and trial.invalidated_at is None
        }
        return sorted(ranked, key=lambda number: (ranked[number], number))

    # --- attempts begin, write and end

    def _begin(self, trial: ModelTrial, worker: str, token: str) -> ModelAttempt:
        holder = self.workers[worker]
        attempt = ModelAttempt(
            number=trial.number,
            no=len(trial.attempts) + 1,
            token=token,
            worker=holder,
            restored=trial.checkpoint,
            start_step=trial.checkpoint.step + 1 if trial.checkpoint else 1,
            started_at=self.now,
        )
        trial.attempts.append(attempt)
        trial.state, trial.flush_no, trial.lease_s = State.RUNNING, 0, holder.lease_s
        trial.started_at = self.now if trial.started_at is None else trial.started_at
        assert self.resources.started(attempt, trial), "a trial that does not fit was claimed"
        self._renew(trial)
        return attempt

    def _of(self, token: str) -> tuple[ModelAttempt, ModelTrial]:
        attempt = self.attempt_of(token)
        assert attempt is not None
        return attempt, self.trials[attempt.number]

    def _fence(self, token: str) -> tuple[ModelAttempt, ModelTrial]:
        attempt, trial = self._of(token)
        if trial.held is not attempt:
            raise LeaseLost(number=attempt.number, attempt=attempt.no)
        return attempt, trial

    def _refuse(self, attempt: ModelAttempt, flush_no: int) -> None:
        """Raise LeaseLost if the attempt has ended without storing this batch."""
        if attempt.flush_no < flush_no:
            raise LeaseLost(number=attempt.number, attempt=attempt.no)

    def _renew(self, trial: ModelTrial) -> None:
        assert trial.lease_s is not None
        trial.expires_at, trial.suspect_at = self.now + trial.lease_s, None

    def _expiry(self, trial: ModelTrial) -> float:
        assert trial.expires_at is not None
        return trial.expires_at

    def _store(
        self, trial: ModelTrial, attempt: ModelAttempt, after: int, results: tuple[Result, ...]
    ) -> tuple[Verdict | None, tuple[Result, ...]]:
        """
        Judge and store results up to the first that gets a verdict.

        Returns:
            The verdict, or None, and the results that are stored.
        """
        if results and trial.flush_no == 0:
            attempt.start_step = results[0].step
            trial.live = {s: v for s, v in trial.live.items() if s < results[0].step}
        for position, result in enumerate(results, 1):
            is_valid = trial.invalidated_at is None
            attempt.stored[result.step] = trial.live[result.step] = result.value
            sent = (attempt.number, attempt.no, after, result, trial.live)
            verdict = self.judge.judge(*sent, bracket=trial.bracket, enters=is_valid)
            trial.time_total_s, after = result.time_total_s, result.step
            if verdict is not None:
                trial.asks_next = self.judge.asks_after(verdict, result)
                return verdict, results[:position]
        return None, results

    def _charge(
        self, trial: ModelTrial, stored: Sequence[Result], decided: Verdict | None = None
    ) -> Verdict | None:
        """
        Count what a flush spends, and stop the study if a limit is reached.

        Returns:
            TIMED_OUT if the trial has used up its time, unless `decided` stops the trial. In all
            other cases `decided`; without `decided`, SPENT if a limit has stopped the study, or
            None.
        """
        self.spending.add([trial], stored, self.now)
        self._stop_if_spent()
        is_open = decided is None or decided.action is Action.PAUSE
        if is_open and self.spending.is_timed_out(trial):
            return TIMED_OUT
        return decided or (SPENT if self.limit else None)

    def _stop_if_spent(self) -> None:
        reached = self.spending.reached()
        if reached and self.status is not Status.STOPPED:
            self.status, self.limit = Status.STOPPED, reached
            self._record_event("study stopped", "limit", data={"reason": reached})

    def _end(
        self,
        trial: ModelTrial,
        outcome: Reason,
        decided: Verdict | None,
        *,
        flush_no: int,
        actor: str,
        failure: Failure | None = None,
    ) -> Ending:
        outcome, waits_s = judge_exit(trial, self.checkpoints, outcome, failure)
        trial.failures += outcome is Reason.FAILED
        trial.losses += outcome is Reason.LOST
        verdict = self._settled(trial, outcome, decided)
        ending = self._ending(trial, outcome, verdict, waits_s)
        attempt = trial.attempts[-1]
        attempt.error_type = failure.type if failure else None
        attempt.ended_at, attempt.reason = self.now, ending.attempt_reason
        attempt.verdict, attempt.flush_no = verdict, flush_no
        trial.state, trial.reason, trial.paused_by = ending.state, ending.reason, ending.paused_by
        trial.ended_at = self.now if ending.state in ENDED else None
        if trial.ended_at is not None:
            release(trial)
            self.judge.leave_rungs(trial.number)
        trial.ready_at = self.now + ending.delay_s if ending.delay_s else None
        trial.request = trial.verdict = trial.suspect_at = None
        if outcome in (Reason.FAILED, Reason.LOST):
            cause = {"type": failure.type, "message": failure.message} if failure else None
            self._record_event(outcome.lower(), actor, attempt=attempt, data=cause)
        return ending

    def _settled(
        self, trial: ModelTrial, outcome: Reason, decided: Verdict | None
    ) -> Verdict | None:
        known, asked = decided or trial.verdict, self._asked(trial)
        is_judged = known is not None and known.by in FINAL_DECIDERS
        is_stopped = is_judged and known.action is Action.STOP
        if not is_stopped and outcome is not Reason.COMPLETED and self.spending.is_timed_out(trial):
            known, is_judged = TIMED_OUT, True
        ends_as = known if is_judged else asked
        if is_judged and known.action is Action.PAUSE and asked is not None:
            by_person = asked.action is Action.STOP or asked.by is DecidedBy.PERSON
            ends_as = asked if by_person else known
        return None if outcome is Reason.COMPLETED and ends_as != known else ends_as

    def _ending(
        self, trial: ModelTrial, outcome: Reason, verdict: Verdict | None, waits_s: float
    ) -> Ending:
        spent = (trial.failures, trial.losses)
        failed_or_lost = outcome in (Reason.FAILED, Reason.LOST)
        if verdict is not None and verdict.action is Action.STOP:
            why = outcome if failed_or_lost else verdict.reason
            return Ending(State.TERMINATED, verdict.reason, why, *spent)
        if verdict is not None and outcome is not Reason.COMPLETED:
            why = outcome if failed_or_lost else verdict.reason
            return Ending(State.PAUSED, None, why, *spent, paused_by=verdict.by)
        if outcome is Reason.COMPLETED:
            return Ending(State.TERMINATED, outcome, outcome, *spent)
        if outcome is Reason.PREEMPTED:
            return Ending(State.PENDING, None, outcome, *spent, delay_s=waits_s)
        if outcome is Reason.FAILED:
            limit, count = self.spec.max_failures, trial.failures
        else:
            limit, count = self.spec.max_losses, trial.losses
        if count > limit != -1:
            return Ending(State.ERROR, outcome, outcome, *spent)
        waits = count if outcome is Reason.FAILED else count - 1  # no wait after the first loss
        delay_s = min(300.0, 2.0 ** (waits - 1)) if waits else 0.0
        return Ending(State.PENDING, None, outcome, *spent, delay_s=delay_s)

    # --- decisions

    def _asked(self, trial: ModelTrial) -> Verdict | None:
        if trial.invalidated_at is not None:
            return Verdict(Action.STOP, Reason.INVALIDATED, DecidedBy.PERSON)
        if trial.request is Action.STOP:
            return Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.PERSON)
        if self.status is Status.STOPPED:
            why = Reason.BUDGET_SPENT if self.limit else Reason.CANCELLED
            return Verdict(Action.STOP, why, DecidedBy.STUDY)
        if trial.request is Action.PAUSE:
            return Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.PERSON)
        if self.status is Status.PAUSED:
            return Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)
        return None

    # --- look-ups

    def attempt_of(self, token: str) -> ModelAttempt | None:
        attempts = (attempt for trial in self.trials for attempt in trial.attempts)
        return next((attempt for attempt in attempts if attempt.token == token), None)

    def _recorded(self, token: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["token"] == token), None)

    def _record_event(
        self,
        kind: str,
        actor: str,
        *,
        attempt: ModelAttempt | None = None,
        number: int | None = None,
        token: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        where = (attempt.number, attempt.no) if attempt else (number, None)
        recorded = {"kind": kind, "actor": actor, "token": token, "data": data}
        self.events.append({"number": where[0], "attempt": where[1]} | recorded)


def run_to_end(turns: Generator[None, None, Any]) -> Any:
    """Run all turns of an action, one directly after the other; return the action's answer."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value
