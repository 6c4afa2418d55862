"""A slot: a thread that claims one trial after another and runs each to its end."""

import shlex
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TypeVar

from studydb.db.faults import is_of_values
from studydb.domain.errors import HostError, LeaseLost, StorageError, StorageTransient, StudydbError
from studydb.domain.failures import Failure, failure_of, short_type
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import Reason, State
from studydb.domain.records import Claim
from studydb.domain.text.display import best_text, value_text
from studydb.lease.acquire import Acquirer
from studydb.lease.held import HeldAttempt, refusal
from studydb.lease.retries import retry_until_answered
from studydb.lease.watch import LONGEST_WAIT_S, PollInterval
from studydb.operations.reads import best_trials
from studydb.operations.record_devices import record_devices
from studydb.operations.study_progress import read_progress
from studydb.worker.attempt import Attempt
from studydb.worker.attempt_progress import Outcome
from studydb.worker.equipment import Equipment
from studydb.worker.first_trials import FAILED_LIMIT
from studydb.worker.holdings import NOTHING_HELD, Holdings
from studydb.worker.slot_processes import SlotProcesses

Answered = TypeVar("Answered")

OUTAGE_WAIT_S = 5.0
"""While the database does not answer, an idle slot waits at most this long between two tries."""


class Sight(Enum):
    """What an idle slot has seen of its study."""

    WORK = "a claim or an ask may succeed"
    NOTHING = "no trial can be claimed now"
    END = "the worker has nothing more to do"


class TrialLimit:
    """How many more attempts the worker may start; shared by its slots."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Count one claim; return False if the limit is reached."""
        with self._lock:
            if self._left is None:
                return True
            if self._left == 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Undo a `take` after which no trial was claimed."""
        with self._lock:
            if self._left is not None:
                self._left += 1


class Slot(threading.Thread):
    """Claims and runs trials until there is nothing more to do or the worker claims no more."""

    def __init__(self, equipment: Equipment, trial_limit: TrialLimit, *, number: int) -> None:
        super().__init__(name=f"studydb-slot-{number}", daemon=True)
        self._equipment, self._trial_limit = equipment, trial_limit
        self._acquirer = Acquirer(
            equipment.database,
            equipment.study,
            worker_id=equipment.worker_id,
            lease_s=equipment.options.lease_s,
            proposer=equipment.proposer,
            fitting=equipment.fitting,
        )
        self._processes = SlotProcesses(
            equipment.templates, equipment.interruption, grace_s=equipment.options.grace_s
        )
        self._poll_interval = PollInterval()
        self._outage_interval = PollInterval(longest_s=OUTAGE_WAIT_S)
        self._saw_work = False
        self._away_since_s: float | None = None

    def run(self) -> None:
        """Claim and run trials; an error stops the worker, which then releases its trials."""
        interruption = self._equipment.interruption
        try:
            self._work()
        except StorageTransient as error:
            number = interruption.signal if self._is_late() else None
            interruption.give_up(_unanswered(error, number))
        except StudydbError as error:
            interruption.give_up(str(error))
        except Exception:  # noqa: BLE001  a bug must not end a slot without a message
            interruption.give_up(traceback.format_exc())
        finally:
            # Other workers of the host see by locks that this worker waits for devices. All slots
            # share these locks. If another slot still waits, it takes the locks at its next look.
            self._equipment.host.wait_for_cards(False)
            self._processes.close()

    def _work(self) -> None:
        while self._equipment.interruption.may_claim and self._trial_limit.take():
            claim = self._acquire()
            if claim is not None:
                self._poll_interval.reset()
                self._saw_work = False
                self._equipment.notices.claimed()
                self._run(claim)
                continue
            self._trial_limit.give_back()
            if (wait_s := self._acquirer.poll_wait_s) is not None:
                self._equipment.interruption.wait_to_claim(wait_s)
            elif self._acquirer.is_unanswered or not self._await_work():
                return

    def _acquire(self) -> Claim | None:
        """
        Send a claim until it is answered, the patience ends, or a stopping worker's grace ends.

        A claim without an answer may hold a trial that no process runs. Therefore the claim counts
        towards `--max-trials` until it is answered. Even a worker that is to claim no more sends
        the claim again, and gives the trial back: otherwise the trial would count as lost.
        """
        claim = self._answer_of(self._acquirer.acquire)
        while self._acquirer.is_unanswered and self._equipment.interruption.may_claim:
            self._wait()
            claim = self._answer_of(self._acquirer.acquire)
        if self._acquirer.is_unanswered:
            with suppress(StorageTransient):  # the lease expires, and a sweep recovers the trial
                return retry_until_answered(
                    self._acquirer.acquire, patience_s=self._equipment.grace_left_s
                )
        return claim

    def _await_work(self) -> bool:
        """
        Wait until a trial may be claimed, or the worker is to claim no more.

        Each slot looks at the study once after a claim that got no trial. Then one of the idle
        slots looks again and again; the others wait for their turn. A slot that sees work ends its
        turn, and the next slot looks immediately, so that several new trials start without delay.

        Returns:
            False if the worker has nothing more to do.
        """
        if self._saw_work:
            self._wait()  # the slot saw work, but its claim got no trial: do not claim nonstop
        if (sight := self._look()) is not Sight.NOTHING:
            return sight is Sight.WORK
        turn = self._equipment.interruption.turn
        has_waited = not turn.acquire(blocking=False)
        if has_waited and not self._await_turn():
            return True
        try:
            while self._equipment.interruption.may_claim:
                if not has_waited:
                    self._wait()
                has_waited = False
                if (sight := self._look()) is not Sight.NOTHING:
                    return sight is Sight.WORK
        finally:
            turn.release()
        return True

    def _await_turn(self) -> bool:
        """Wait until no other slot looks; return False if the worker is to claim no more."""
        while self._equipment.interruption.may_claim:
            if self._equipment.interruption.turn.acquire(timeout=LONGEST_WAIT_S):
                # The slot that had the turn got an answer from the database, or ends the worker.
                self._away_since_s = None
                return True
            self._drop_idle()
        return False

    def _wait(self) -> None:
        self._drop_idle()
        interval = self._poll_interval if self._away_since_s is None else self._outage_interval
        self._equipment.interruption.wait_to_claim(interval.next_s())

    def _drop_idle(self) -> None:
        self._processes.drop_idle()
        self._equipment.templates.drop_idle()

    def _look(self) -> Sight:
        """Look at the study, and print why there is no work."""
        progress = self._answer_of(self._acquirer.look)
        if self._acquirer.is_drained:
            self._equipment.interruption.drain()
        if progress is None:
            return Sight.NOTHING
        if progress.is_done and not self._equipment.options.wait:
            return Sight.END
        self._equipment.notices.nothing_claimed(
            progress, is_too_small=self._equipment.fitting.is_unused
        )
        self._saw_work = progress.can_claim
        return Sight.WORK if progress.can_claim else Sight.NOTHING

    def _answer_of(self, call: Callable[[], Answered]) -> Answered | None:
        """
        Make a call; return None if the database does not answer, and print that once.

        Raises:
            StorageTransient: The database has not answered for the worker's patience.
        """
        try:
            answer = call()
        except StorageTransient as error:
            self._wait_for_database(error)
            return None
        if self._away_since_s is not None:
            self._away_since_s = None
            self._outage_interval.reset()
            self._equipment.options.say("the database answers again")
        return answer

    def _wait_for_database(self, error: StorageTransient) -> None:
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
            self._equipment.options.say(f"waiting for the database: {error}")
        if now_s - self._away_since_s > self._equipment.options.patience_s:
            raise error

    def _run(self, claim: Claim) -> None:
        equipment = self._equipment
        held = HeldAttempt(
            equipment.database,
            equipment.study,
            claim,
            patience_s=equipment.options.patience_s,
            give_up=self._is_late,
            on_outage=equipment.notices.trial_waits,
            room=equipment.room,
            ask_rule=equipment.ask_rule,
        )
        equipment.heartbeat.add(held)
        holdings = self._take(claim)
        attempt = Attempt(equipment, held, self._processes, holdings or NOTHING_HELD)
        is_stored = False
        try:
            not_run = _outcome_of_misfit(claim) or self._too_late() or _outcome_without(holdings)
            self._end(held, attempt, not_run or attempt.run())
            is_stored = True
        except LeaseLost as error:
            equipment.options.say(str(error))
        except StorageTransient:
            raise
        except Exception as error:
            if is_of_values(error):
                self._fail(held, attempt, error)
                return
            with suppress(Exception):  # raise the first error, even if this cleanup fails
                why = failure_of(error, whole=True)
                held.end(Reason.LOST, failure=why, process=attempt.process, patience_s=0.0)
            raise
        finally:
            equipment.heartbeat.discard(held)
            held.close()
            if not is_stored:
                self._processes.close()
                attempt.delete_upload()
            self._release(claim, holdings)

    def _is_late(self) -> bool:
        return self._equipment.interruption.is_late(self._equipment.options.grace_s)

    def _take(self, claim: Claim) -> Holdings | None:
        """
        Take what a trial asks for.

        Returns:
            None if what the trial asks for is not free, or if the host fails. The trial is then
            given back. If the host fails, the worker also stops.
        """
        equipment = self._equipment
        if equipment.fitting.is_refused(claim):
            return None
        asked = equipment.fitting.granted(claim)
        if asked is None:
            return NOTHING_HELD
        try:
            holdings = equipment.host.take(asked)
        except (HostError, OSError) as error:
            equipment.interruption.give_up(str(error))
            return None
        if holdings is not None and holdings.grant.names:
            equipment.fitting.place(claim, holdings.grant.places)
            with suppress(StudydbError):  # the names are stored only for people
                record_devices(equipment.database, claim.lease, holdings.grant.names)
        return holdings

    def _release(self, claim: Claim, holdings: Holdings | None) -> None:
        warning = None if holdings is None else holdings.release()
        if warning is not None:
            self._equipment.options.say(f"trial {claim.lease.number}: {warning}")
        self._equipment.fitting.release(claim)

    def _too_late(self) -> Outcome | None:
        """If the worker may claim no more, return an outcome that gives a trial back; else None."""
        return None if self._equipment.interruption.may_claim else Outcome(Reason.PREEMPTED)

    def _end(self, held: HeldAttempt, attempt: Attempt, outcome: Outcome) -> None:
        ending = held.end(outcome.reason, failure=outcome.failure, process=attempt.process)
        self._equipment.notices.answered()
        self._equipment.options.say(self._line(attempt, held, outcome, ending))
        self._check_this_host(held, ending.attempt_reason if ending else outcome.reason)

    def _check_this_host(self, held: HeldAttempt, reason: Reason) -> None:
        equipment, number = self._equipment, held.lease.number
        if not equipment.study.guard or not equipment.first_trials.all_failed(number, reason):
            return
        with suppress(StorageTransient):
            if read_progress(equipment.database, equipment.study).n_successes:
                equipment.interruption.give_up(
                    f"The first {FAILED_LIMIT} trials of this worker have all failed, while other "
                    f"trials of study {equipment.study.name!r} ended without an error: this host "
                    "or its environment may be the cause. `studydb show "
                    f"{shlex.quote(equipment.study.name)} {number}` shows the last failure."
                )

    def _fail(self, held: HeldAttempt, attempt: Attempt, error: Exception) -> None:
        """End an attempt as failed, because the database refused its values."""
        say, outcome = self._equipment.options.say, Outcome(Reason.FAILED, failure_of(error))
        try:
            ending = held.fail(error, process=attempt.process)
        except LeaseLost as lost:
            say(str(lost))
        except StorageError:
            raise
        except Exception as second:  # noqa: BLE001  the lease expires and a sweep recovers the trial
            say(f"trial {held.lease.number} cannot be ended: {_one_line(failure_of(second))}")
        else:
            say(self._line(attempt, held, outcome, ending))

    def _line(
        self, attempt: Attempt, held: HeldAttempt, outcome: Outcome, ending: Ending | None
    ) -> str:
        lease = held.lease
        reason = ending.attempt_reason if ending else outcome.reason
        again = " (will run again)" if ending and ending.state is State.PENDING else ""
        why = f": {_one_line(outcome.failure)}" if outcome.failure else ""
        why += ending.note if ending else ""
        at = f"step {held.buffer.last_step}{self._values(attempt.last_value)}"
        return f"trial {lease.number}, attempt {lease.attempt}: {reason} at {at}{again}{why}"

    def _values(self, value: float | None) -> str:
        study = self._equipment.study
        if value is None:
            return ""
        text = f", {study.objective.metric} {value_text(value)}"
        if not self._equipment.notices.is_best_due():
            return text
        with suppress(StudydbError):
            best = best_trials(self._equipment.database, study)[0]
            best_value = best_text(best.best_value, study.objective.mode)
            text += f" (best {best_value}, trial {best.number})"
        return text


def _outcome_of_misfit(claim: Claim) -> Outcome | None:
    failure = refusal(claim)
    return None if failure is None else Outcome(Reason.FAILED, failure)


def _outcome_without(holdings: Holdings | None) -> Outcome | None:
    """Give back a trial if what it asks for could not be taken."""
    return None if holdings is not None else Outcome(Reason.PREEMPTED)


def _one_line(failure: Failure) -> str:
    """Describe a failure in one line; an exception of the user is shown as "type: message"."""
    first, *more = failure.message.strip().splitlines() or [""]
    text = f"{first} …" if more else first
    if not failure.traceback or failure.type.startswith("studydb."):
        return text
    return f"{short_type(failure.type)}: {text}"


def _unanswered(error: StorageTransient, number: int | None) -> str:
    """
    Say why a worker ends without an answer of the database, and what becomes of its trials.

    Args:
        number: The signal that stops the worker; None if the patience has ended.
    """
    why = "for too long"
    if number is not None:
        why = f"for a third of the grace after {signal.Signals(number).name}"
    return (
        f"The database did not answer {why}. The trials of this worker go on from their last "
        "checkpoint: at once when a worker starts on this host, else when their leases have "
        f"expired. {error}"
    )
