"""The own loop: a user's process that asks for trials and runs these trials itself."""

import shlex
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from studydb.db import Database
from studydb.domain.errors import LeaseLost, StudyFailed
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import DRAIN, LEASE_S, Study
from studydb.domain.resources import UNLIMITED, Capacity
from studydb.domain.user_warnings import warn_user
from studydb.lease.held import HeldAttempt, refusal
from studydb.lease.own_checkpoints import OwnCheckpoints
from studydb.lease.own_trial import OwnTrial, give_back
from studydb.lease.own_worker import OwnWorker
from studydb.lease.retries import locked_until, retry_until
from studydb.lease.rule_judge import AskRule
from studydb.lease.watch import PollInterval
from studydb.operations.failing import describe_failure
from studydb.operations.recover import awaits_recovery
from studydb.operations.study_progress import StudyProgress


class OwnLoop:
    """
    Asks for trials in this process; one heartbeat and one flushing thread serve all trials.

    A fork of the process must make another object. If the program drops this object and its unended
    trials, the flushing thread does what `close` does.
    """

    def __init__(
        self,
        storage: str,
        study: Study,
        *,
        lease_s: float = LEASE_S,
        ask_rule: AskRule | None = None,
        capacity: Capacity = UNLIMITED,
        at_close: Callable[[], None] = lambda: None,
        deadline: float | None = None,
    ) -> None:
        """
        Register this process as a worker, and start its heartbeat and its flushing thread.

        The trials of dead processes of this host are recovered.

        Args:
            storage: The database's URL with its password.
            ask_rule: Asks a custom stop rule; None if the study has none.
            capacity: The resources that this process has for its trials; unlimited by default.
            at_close: Called when this object has been closed.
            deadline: Until when to try to register, by the monotonic clock.

        Raises:
            TimeoutError: The database did not answer before the deadline.
            StorageTransient: There is no deadline, and the database did not answer for 15 minutes.
        """
        self._study, self._capacity = study, capacity
        self._shown_cause: str | None = None
        self._has_warned_of_size = self._has_warned_of_unended = False
        self._worker = worker = OwnWorker(
            storage,
            study,
            lease_s=lease_s,
            ask_rule=ask_rule,
            capacity=capacity,
            at_close=at_close,
            deadline=deadline,
        )
        # The threads and atexit hold only the worker, so that this object can be dropped.
        weakref.finalize(self, worker.abandon).atexit = False
        self._database, self._heartbeat = worker.database, worker.heartbeat
        self._fitting, self._forget = worker.fitting, worker.forget
        self._acquirer, self._acquiring = worker.acquirer, worker.acquiring

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the process that registered."""
        return self._worker.is_foreign

    def ask(self, deadline: float | None = None) -> OwnTrial | None:
        """
        Get the next trial; None if no more follow, or a person has drained this process.

        If another thread closes this loop, the result is None, too.

        Args:
            deadline: Until when to wait, by the monotonic clock; None to wait without end.

        Raises:
            TimeoutError: No trial could start before the deadline.
            StudyFailed: The study has paused itself because of failed trials (`guard`,
                `fail_fast`), or because the user's code did not decide and no work is left.
            HostError, UsageError: See `OwnCheckpoints.restore`; the trial is given back.
            StorageTransient: The database did not answer for 15 minutes.
        """
        poll_interval = PollInterval()
        has_seen_work = False
        self._warn_of_unended()
        while not self._is_over:
            held = self._acquire(deadline)
            if held is not None:
                trial = self._begin(held)
                if trial is None:
                    continue
                return trial
            if (wait_s := self._acquirer.poll_wait_s) is not None:
                _wait(wait_s, deadline)
                has_seen_work = False
            elif has_seen_work:  # but the search found none, as while another session has locked it
                _wait(poll_interval.next_s(), deadline)
                has_seen_work = False
            elif self._await_work(deadline, poll_interval):
                has_seen_work = True
            else:
                return None
        return None

    @property
    def _is_over(self) -> bool:
        """Whether a person has drained this process, or another thread has closed the loop."""
        is_drained = self._heartbeat.request == DRAIN or self._acquirer.is_drained
        return is_drained or self._worker.is_closed

    def _await_work(self, deadline: float | None, poll_interval: PollInterval) -> bool:
        """Wait until a trial may be claimed; return False if this process gets no more trials."""
        while not self._is_over:
            is_unused = self._fitting.is_unused  # read first: a trial may end during the look
            progress = self._look(self._acquirer.look, deadline)
            if progress.can_claim:
                return True
            if progress.pause_reason is not None:
                describe = partial(describe_failure, self._database, self._study, progress)
                why = retry_until(deadline, describe)
                if not progress.keeps_workers:
                    raise StudyFailed(why)
                self._warn_of_code(why)
            if self._is_exhausted(progress, deadline):
                return False
            if is_unused:
                self._warn_of_size(progress)
            _wait(poll_interval.next_s(), deadline)
        return False

    def _is_exhausted(self, progress: StudyProgress, deadline: float | None) -> bool:
        """
        Whether this process gets no more trials.

        A trial that another process has lost can follow once a sweep has recovered the trial. A new
        look comes last, because a sweep may have done so since `progress` was read.
        """
        held = self._heartbeat.held()
        if any(one.is_dropped for one in held):  # the flushing thread will give these back
            return False
        if progress.status is Status.STOPPED:
            return True
        n_held = sum(not one.is_lost for one in held)
        if not progress.is_exhausted(n_held):
            return False
        awaits = partial(awaits_recovery, self._database, self._study, worker_id=self._worker.id)
        if retry_until(deadline, awaits):
            return False
        return self._look(self._acquirer.look_anew, deadline).is_exhausted(n_held)

    def _look(self, look: Callable[[], StudyProgress], deadline: float | None) -> StudyProgress:
        with locked_until(self._acquiring, deadline):
            return retry_until(deadline, look)

    def _warn_of_unended(self) -> None:
        """Warn once that the program drops trials before their end, which makes them run again."""
        unended = self._worker.unended
        if not unended or self._has_warned_of_unended:
            return
        self._has_warned_of_unended = True
        warn_user(
            f"The program dropped trial {unended[0]} before its end, so the trial was given "
            "back, and will run again. End each trial by finish(), fail() or release(), or write: "
            "with study.ask() as trial:"
        )

    def _warn_of_code(self, why: str) -> None:
        """Warn, once for each cause, that a study waits for a person to correct the user's code."""
        if why != self._shown_cause:
            self._shown_cause = why
            warn_user(why)

    def _warn_of_size(self, progress: StudyProgress) -> None:
        """Warn once that each trial that can start asks for more than this process offers."""
        waits = progress.status is Status.RUNNING and progress.has_room
        if self._has_warned_of_size or not waits:
            return
        if self._fitting.is_unlimited or not (progress.counts.pending or progress.has_budget):
            return
        self._has_warned_of_size = True
        name = shlex.quote(self._study.name)
        warn_user(
            f"No trial that can start now fits what this process offers ({self._capacity}), so "
            "ask() waits. "
            f"`studydb status {name}` says what trials ask for."
        )

    def _begin(self, held: HeldAttempt) -> OwnTrial | None:
        """Make the handle of a held trial; return None if the trial must not run or is lost."""
        if self._fitting.is_refused(held.claim):
            give_back(held, self._forget)
            return None
        if (failure := refusal(held.claim)) is not None:
            with suppress(LeaseLost):
                held.end(Reason.FAILED, failure=failure)
            self._forget(held)
            return None
        try:
            return OwnTrial(
                held,
                metric=self._study.objective.metric,
                find_directory=partial(_directory_of, self._database, self._study, held),
                checkpoints=OwnCheckpoints(self._database, self._study, held),
                forget=self._forget,
                drop=self._worker.drop,
                loop=self,
            )
        except LeaseLost:
            self._forget(held)
            return None
        except BaseException:
            give_back(held, self._forget)
            raise

    def _acquire(self, deadline: float | None) -> HeldAttempt | None:
        worker = self._worker
        with locked_until(self._acquiring, deadline):  # all threads share one claim token
            claim = None if worker.is_closed else worker.acquire(deadline)
            if claim is None:
                return None
            held = worker.hold(claim)
            worker.settle()
            return held

    def close(self) -> None:
        """Give back all held trials, and record that this process has ended."""
        self._worker.close()


def _directory_of(database: Database, study: Study, held: HeldAttempt) -> Path:
    return database.locations.trial_directory(study, held.lease)


def _wait(wait_s: float, deadline: float | None) -> None:
    if deadline is None:
        time.sleep(wait_s)
        return
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError(
            "No trial could start in time; call ask() again, or look at `studydb status`."
        )
    time.sleep(min(wait_s, left_s))
