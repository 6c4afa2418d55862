"""
Get the next trial: claim a PENDING trial, promote a PAUSED one, or make a new one.

An idle process polls: most of its looks only read, and some also recover lost trials.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from uuid import uuid4

from studydb.db import Database
from studydb.domain.life.states import Status
from studydb.domain.records import DRAIN, QUEUE_START, Claim, Claimant, QueuePosition, Study
from studydb.domain.resources import OF_STUDY
from studydb.domain.scheduling import Idle
from studydb.lease.fitting import RESUME_SCAN_S, Fitting
from studydb.lease.proposing import Proposer, Step
from studydb.lease.watch import PollInterval, Watch
from studydb.operations.ask import ask
from studydb.operations.claim import claim, wait_for_earlier_send
from studydb.operations.leave_draw import leave_draw
from studydb.operations.promote import Asked, NextStep, promote
from studydb.operations.recover import recover, recover_host
from studydb.operations.study_progress import StudyProgress
from studydb.operations.user_work import record_idle
from studydb.processes import is_alive, this_process

SWEEP_S = 15.0
"""While trials run, an idle process recovers lost trials at least once in this many seconds."""

MOST_ASKS = 100
"""The most tries of one `_ask`; between two tries, a draw may be skipped or left to others."""

TURN_S = 0.5
"""The longest time that a slot waits while another slot of its worker searches for a trial."""


class Acquirer:
    """
    Acquires trials for a worker process (`studydb worker`) or for an own loop.

    If `acquire` raises an error, the next call sends the same token. So if only the reply was lost,
    the next call finds the claimed trial. If that trial was recovered meanwhile, the next call
    returns None, and later calls use a new token.
    """

    def __init__(
        self,
        database: Database,
        study: Study,
        *,
        worker_id: int,
        lease_s: float,
        proposer: Proposer | None = None,
        fitting: Fitting | None = None,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        """
        Prepare to acquire; the threads of a worker share one `proposer` and one `fitting`.

        Args:
            fitting: Tells which trials fit the worker; None if every request for resources fits.
        """
        self._fitting = fitting or Fitting(database, study, worker_id=worker_id, clock_s=clock_s)
        self._has_turn = False
        self._database, self._study = database, study
        self._proposer = proposer or Proposer.of(database, study, worker_id=worker_id)
        self._worker_id, self._lease_s, self._clock_s = worker_id, lease_s, clock_s
        self._claimant = self._new_claimant()
        self._again = self._is_idle = False
        self._claims_first = True
        self._watch = Watch(database, study, worker_id=worker_id)
        self._sweeps = PollInterval(longest_s=SWEEP_S)
        self._recorded: Asked | None = None
        self._last_position, self._whole_scan_s = QUEUE_START, -inf

    def _new_claimant(self) -> Claimant:
        return Claimant(self._worker_id, uuid4().hex, self._lease_s)

    def acquire(self) -> Claim | None:
        """
        Claim a PENDING trial, promote a PAUSED trial and claim it, or make a new trial.

        Raises:
            StorageTransient: Call again; if a trial was claimed, the next call returns the trial,
                unless it was recovered meanwhile.
        """
        if self._is_idle and not self._again and not self._may_succeed():
            return None  # so that polling writes nothing
        self._fitting.learn()
        if not (self._has_turn or self._fitting.shares):
            return self._search()
        if not self._has_turn and not self._fitting.take_turn(TURN_S):
            return None
        self._has_turn = True  # stays True on an error: the search may have claimed
        claimed = self._search()
        if claimed is not None:
            self._fitting.hold(claimed)
        self._has_turn = False
        self._fitting.end_turn()
        return claimed

    def _search(self) -> Claim | None:
        again, self._again = self._again, True  # stays True if `_acquire` raises
        if not again:
            self._claimant = self._new_claimant()
        claimed = self._acquire(again=again)
        self._again, self._is_idle = False, claimed is None
        if claimed is None:
            self._watch.forget()
            if not self._fitting.is_classed:
                self._fitting.learn(now=True)
            return None
        self._end_wait()
        self._sweeps.reset()
        self._watch.reset()
        return claimed

    def _end_wait(self) -> None:
        if self._proposer is not None:
            self._proposer.reset()

    @property
    def poll_wait_s(self) -> float | None:
        """
        The seconds to sleep before the next look, while another thread or process fits the model.

        None if this thread does not wait for a model.
        """
        if self._proposer is None or not self._proposer.is_waiting:
            return None
        return self._proposer.poll_wait_s()

    @property
    def is_drained(self) -> bool:
        """Whether the last look has seen that a person drains this worker."""
        return self._watch.request == DRAIN

    @property
    def is_unanswered(self) -> bool:
        """Whether the last search was cut short by an error; it may still have claimed a trial."""
        return self._again

    @property
    def token(self) -> str:
        """The token of the last search, or of the first search if there was none yet."""
        return self._claimant.token

    def send_again(self) -> None:
        """Let the next search send the last token again, because the caller lost its answer."""
        self._again = True

    def find_claimed(self) -> Claim | None:
        """
        Find the trial that the last search has claimed, unless its attempt has ended.

        No trial is claimed. A send of the search that is still being carried out is waited for.

        Raises:
            StorageError: The database did not answer, or cannot be used.
        """
        return wait_for_earlier_send(self._database, self._study, self._claimant)

    def _may_succeed(self) -> bool:
        """Whether a search may succeed. The check writes only if a proposal must be made."""
        fits = self._fitting.names()
        if self._proposer is not None and self._proposer.is_waiting and not self._resumes:
            return self._proposer.advance(if_nothing_waits=True, fits=fits) is not Step.WAIT
        return self._watch.read(fits=self._fitting.limits()).can_claim

    @property
    def _resumes(self) -> bool:
        return self._study.scheduler.resumes

    def _acquire(self, *, again: bool) -> Claim | None:
        """
        Try a claim and an ask; `_claims_first` says which of them comes first.

        If trials can wait at rungs, `promote` comes before the ask, because the scheduler may want
        to promote a trial or to close a rung. In such a study, the claim comes first if an earlier
        try was not answered, because that try may have promoted a trial and claimed it.
        """
        claims_first = self._claims_first or (again and self._resumes)
        claimed = self._claim(again=again) if claims_first else None
        step = NextStep.START_NEW
        if claimed is None and self._resumes:
            step = self._promote(again=again)
        if step is NextStep.START_NEW and not claims_first:
            asked = self._ask(again=again, if_nothing_waits=True)
            if asked is not None:
                return asked
        if claimed is None and (step is NextStep.CLAIM or not claims_first):
            claimed = self._claim(again=again, is_promoted=step is NextStep.CLAIM)
        if claimed is not None:
            self._remember(claimed)
            return claimed
        if step is not NextStep.START_NEW:
            self._end_wait()
            return None
        # An ask above made no trial if a PENDING trial could be claimed. Other workers may have
        # claimed that trial by now, so this ask has no such condition.
        asked = self._ask(again=again, if_nothing_waits=False)
        if asked is not None:
            self._claims_first = False
        return asked

    def _remember(self, claimed: Claim) -> None:
        """Remember a claimed trial's position, and choose the next search's first operation."""
        self._last_position = claimed.queue_position
        # A trial that is claimed for its first attempt was enqueued or cloned, or did not fit the
        # worker that made the trial. Most trials that are claimed for a later attempt were
        # promoted.
        self._claims_first = not self._resumes or claimed.lease.attempt == 1

    def _claim(self, *, again: bool, is_promoted: bool = False) -> Claim | None:
        if self._fitting.is_classed:
            return self._fitting.claim(self._claimant, again=again)
        # Most scans begin behind the last claimed trial. The scan for a promoted trial does not,
        # because that trial can have a lower number.
        return claim(
            self._database,
            self._study,
            self._claimant,
            again=again,
            after_position=QUEUE_START if is_promoted else self._after_position(),
        )

    def _promote(self, *, again: bool) -> NextStep:
        fits = self._fitting.names()
        return promote(self._database, self._study, self._claimant, again=again, fits=fits)

    def _ask(self, *, again: bool, if_nothing_waits: bool) -> Claim | None:
        study, fits = self._study, self._fitting.names()
        if not study.asks_by_config and fits is not None and OF_STUDY not in fits:
            return None  # `_claim` finds a trial that an earlier send of this ask has made
        must_fit = study.asks_by_config and not self._fitting.is_unlimited
        proposer = self._proposer
        for _ in range(MOST_ASKS):
            by_model = None if proposer is None else partial(proposer.prepare, fits=fits)
            asked = ask(
                self._database,
                study,
                self._claimant,
                again=again,
                if_nothing_waits=if_nothing_waits,
                fits=fits,
                must_fit=must_fit,
                by_model=by_model,
            )
            if asked is not None or not must_fit:
                return asked
            self._fitting.learn(now=True)  # the next draw may be the first of its resource class
            fits = self._fitting.names() or []
            if not leave_draw(self._database, study, fits=fits, if_nothing_waits=if_nothing_waits):
                return None
        return None

    def _after_position(self) -> QueuePosition:
        now_s = self._clock_s()
        if now_s - self._whole_scan_s < RESUME_SCAN_S:
            return self._last_position
        self._whole_scan_s = now_s
        return QUEUE_START

    def look_anew(self) -> StudyProgress:
        """Do the same as `look`, but use nothing that an earlier look has read."""
        self._watch.forget()
        return self.look()

    def look(self) -> StudyProgress:
        """
        Read the study's progress, in most cases by a single statement; call this to poll.

        While trials run, looks recover lost trials: every look at first and soon after a claim,
        then ever fewer looks, down to one in 15 s. A look also makes trials claimable: those whose
        back-off is over, and those that were paused with their study, once the study is resumed. If
        a custom scheduler has no work left, a look records this.
        """
        fits = self._fitting.look()
        progress = self._watch.read(fits=fits)
        is_due = progress.counts.running > 0 and self._sweeps.is_over
        if is_due or progress.needs_sweep:
            recover(self._database, self._study)
            recover_host(self._database, self._study, process=this_process(), is_alive=is_alive)
            self._sweeps.begin()
            progress = self._watch.read(fits=fits)
        self._is_idle = not progress.can_claim
        is_open = progress.status is Status.RUNNING and progress.has_room
        self._fitting.show_wait(makes_new=is_open and progress.has_budget)
        if progress.asked.question is not None and progress.status is Status.FINISHED:
            self._record_end(progress.asked)
        return progress

    def _record_end(self, asked: Asked) -> None:
        """Record once that a custom scheduler has no work left; see `record_idle`."""
        if asked != self._recorded and isinstance(asked.work, Idle) and asked.question is not None:
            record_idle(self._database, self._study, asked.question, asked.work)
            self._recorded = asked
