"""The own loop: a user's process that asks for trials and runs these trials itself."""

import atexit
import os
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from uuid import uuid4

from studydb.db import connect
from studydb.domain.errors import LeaseLost, StudydbError, StudyFailed
from studydb.domain.life.states import Reason, Status
from studydb.domain.records import DRAIN, LEASE_S, Claim, Study
from studydb.domain.resources import UNLIMITED, Capacity
from studydb.domain.roles import Role
from studydb.domain.user_warnings import warn_user
from studydb.lease.acquire import Acquirer
from studydb.lease.buffer import FLUSH_S
from studydb.lease.fitting import Fitting
from studydb.lease.heartbeat import Heartbeat
from studydb.lease.held import HeldAttempt, refusal
from studydb.lease.own_checkpoints import OwnCheckpoints
from studydb.lease.own_trial import OwnTrial, give_back
from studydb.lease.retries import retry_until, retry_until_answered
from studydb.lease.rule_judge import AskRule
from studydb.lease.upload_collector import UploadCollector
from studydb.lease.watch import PollInterval
from studydb.operations.failing import describe_failure
from studydb.operations.recover import recover, recover_host
from studydb.operations.register import leave, register
from studydb.operations.study_progress import StudyProgress
from studydb.operations.writing import write
from studydb.processes import is_alive, this_process
from studydb.version import __version__


class OwnLoop:
    """
    Asks for trials in this process; one heartbeat and one flushing thread serve all trials.

    Attributes:
        pid: The id of the only process that may use this object; a fork must make another object.
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
    ) -> None:
        """
        Register this process as a worker, and start its heartbeat and its flushing thread.

        The trials of dead processes of this host are recovered.

        Args:
            storage: The database's URL with its password.
            ask_rule: Asks a custom stop rule; None if the study has none.
            capacity: The resources that this process has for its trials; unlimited by default.
            at_close: Called when this object has been closed.
        """
        self._at_close = at_close
        self.pid = os.getpid()
        self._study, self._lease_s, self._ask_rule = study, lease_s, ask_rule
        self._shown_cause: str | None = None
        self._capacity, self._has_warned_of_size = capacity, False
        self._has_warned_of_unended = False
        self._database, self._heartbeat_database = connect(storage), connect(storage, connections=1)
        try:
            self._worker_id = self._enter()
        except BaseException:
            self._close_connections()
            raise
        self._fitting = Fitting(self._database, study, worker_id=self._worker_id, capacity=capacity)
        self._acquirer = Acquirer(
            self._database,
            study,
            worker_id=self._worker_id,
            lease_s=lease_s,
            fitting=self._fitting,
        )
        self._acquiring = threading.Lock()
        self._uploads = UploadCollector(self._heartbeat_database, study)
        self._heartbeat = Heartbeat(
            self._heartbeat_database,
            study,
            worker_id=self._worker_id,
            lease_s=lease_s,
            after_beat=self._after_beat,
        )
        self._forget = partial(_forget, self._heartbeat, self._fitting)
        self._heartbeat.start()
        self._closed = threading.Event()
        self._dropped: SimpleQueue[HeldAttempt] = SimpleQueue()
        self._unended: list[int] = []
        threading.Thread(
            target=_flush_and_give_back,
            args=(self._heartbeat, self._dropped, self._closed, self._forget),
            name="studydb-flush",
            daemon=True,
        ).start()
        atexit.register(self.close)

    def _after_beat(self) -> None:
        recover(self._heartbeat_database, self._study)
        self._uploads.look()

    def _enter(self) -> int:
        uuid = uuid4().hex
        worker_id = retry_until_answered(
            lambda: write(self._database, lambda: self._register(uuid), role=Role.WORKER)
        )
        process = this_process()
        retry_until_answered(
            lambda: recover_host(self._database, self._study, process=process, is_alive=is_alive)
        )
        return worker_id

    def _register(self, uuid: str) -> int:
        return register(
            self._database,
            self._study,
            uuid=uuid,
            process=this_process(),
            slots=1,
            lease_s=self._lease_s,
            version=__version__,
            capacity=None if self._capacity.is_unlimited else self._capacity,
        )

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the process that registered."""
        return os.getpid() != self.pid

    def ask(self, timeout_s: float | None = None) -> OwnTrial | None:
        """
        Get the next trial; None if no more follow, or a person has drained this process.

        Raises:
            TimeoutError: No trial could start within `timeout_s`.
            StudyFailed: The study has paused itself for a reason for which workers end.
            HostError, UsageError: See `OwnCheckpoints.restore`; the trial is given back.
            StorageTransient: The database did not answer for 15 minutes.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll_interval = PollInterval()
        self._warn_of_unended()
        while not self._is_drained:
            claim = self._acquire(deadline)
            if claim is not None:
                trial = self._begin(claim)
                if trial is None:
                    continue
                return trial
            if (wait_s := self._acquirer.poll_wait_s) is not None:
                _wait(wait_s, deadline)
            elif not self._await_work(deadline, poll_interval):
                return None
        return None

    @property
    def _is_drained(self) -> bool:
        return self._heartbeat.request == DRAIN or self._acquirer.is_drained

    def _await_work(self, deadline: float | None, poll_interval: PollInterval) -> bool:
        """Wait until a trial may be claimed; return False if this process gets no more trials."""
        while not self._is_drained:
            is_unused = self._fitting.is_unused  # read first: a trial may end during the look
            progress = retry_until(deadline, self._acquirer.look)
            if progress.can_claim:
                return True
            if progress.pause_reason is not None:
                describe = partial(describe_failure, self._database, self._study, progress)
                why = retry_until(deadline, describe)
                if not progress.keeps_workers:
                    raise StudyFailed(why)
                self._warn_of_code(why)
            if self._is_exhausted(progress):
                return False
            if is_unused:
                self._warn_of_size(progress)
            _wait(poll_interval.next_s(), deadline)
        return False

    def _is_exhausted(self, progress: StudyProgress) -> bool:
        """Whether no trial follows; if the scheduler promotes trials, a new look confirms it."""
        held = self._heartbeat.held()
        if any(one.is_dropped for one in held):  # a thread gives its trial back at this moment
            return False
        n_held = len(held)
        if not progress.is_exhausted(n_held):
            return False
        return not progress.promotes or self._acquirer.look_anew().is_exhausted(n_held)

    def _warn_of_unended(self) -> None:
        """Warn once that the program drops trials before their end, which makes them run again."""
        if not self._unended or self._has_warned_of_unended:
            return
        self._has_warned_of_unended = True
        warn_user(
            f"The program dropped trial {self._unended[0]} before its end, so the trial was given "
            "back, and will run again. End each trial by finish(), fail() or release(), or write: "
            "with study.ask() as trial:"
        )

    def _warn_of_code(self, why: str) -> None:
        """Warn, once for each cause, that a study waits for a person to correct the user's code."""
        if why != self._shown_cause:
            self._shown_cause = why
            warn_user(why)

    def _warn_of_size(self, progress: StudyProgress) -> None:
        """Warn once that no trial that can start fits this process, although no trial runs here."""
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

    def _begin(self, claim: Claim) -> OwnTrial | None:
        """Make the handle of a claimed trial; return None if the trial must not run or is lost."""
        held = HeldAttempt(self._database, self._study, claim, ask_rule=self._ask_rule)
        self._heartbeat.add(held)
        if self._fitting.is_refused(claim):
            give_back(held, self._forget)
            return None
        if (failure := refusal(claim)) is not None:
            with suppress(LeaseLost):
                held.end(Reason.FAILED, failure=failure)
            self._forget(held)
            return None
        try:
            return OwnTrial(
                held,
                metric=self._study.objective.metric,
                find_directory=partial(self._directory_of, held),
                checkpoints=OwnCheckpoints(self._database, self._study, held),
                forget=self._forget,
                drop=partial(_drop, self._dropped, self._unended),
            )
        except LeaseLost:
            self._forget(held)
            return None
        except BaseException:
            give_back(held, self._forget)
            raise

    def _directory_of(self, held: HeldAttempt) -> Path:
        return self._database.locations.trial_directory(self._study, held.lease)

    def _acquire(self, deadline: float | None) -> Claim | None:
        with self._acquiring:  # all threads share a token that names one claim
            return retry_until(deadline, self._acquirer.acquire)

    def close(self) -> None:
        """Give back all held trials, and record that this process has ended."""
        if self.is_foreign or self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self.close)
        for held in self._heartbeat.held():
            give_back(held, self._forget)
        self._heartbeat.stop()
        with suppress(StudydbError):
            leave(self._database, worker_id=self._worker_id)
        self._close_connections()
        self._at_close()

    def _close_connections(self) -> None:
        self._database.close()
        self._heartbeat_database.close()


def _forget(heartbeat: Heartbeat, fitting: Fitting, held: HeldAttempt) -> None:
    """Stop renewing an attempt's lease, and count the attempt's resources as free."""
    heartbeat.discard(held)
    fitting.release(held.claim)


def _drop(dropped: "SimpleQueue[HeldAttempt]", unended: list[int], held: HeldAttempt) -> None:
    held.is_dropped = True
    if not unended and not held.is_lost:
        unended.append(held.lease.number)
    dropped.put(held)


def _flush_and_give_back(
    heartbeat: Heartbeat,
    dropped: "SimpleQueue[HeldAttempt]",
    closed: threading.Event,
    forget: Callable[[HeldAttempt], None],
) -> None:
    """Until `closed` is set, flush overdue results and give back the trials of dropped handles."""
    while not closed.wait(FLUSH_S / 4):
        while not dropped.empty():
            give_back(dropped.get(), forget)
        for held in heartbeat.held():
            if held.buffer.is_overdue() and not held.must_stop:
                with suppress(Exception):  # the handle's next call raises the error
                    held.flush(patience_s=0.0)


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
