"""Claim trials that fit one process, and record what they use, if trials ask for resources."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic

from studydb.db import Database
from studydb.domain.class_queues import RESERVE_AFTER_S, ClassQueues
from studydb.domain.errors import HostError, StorageTransient
from studydb.domain.records import QUEUE_START, Claim, Claimant, QueuePosition, Study
from studydb.domain.resources import OF_STUDY, UNLIMITED, Capacity, Ledger, Resources
from studydb.operations.claim_fitting import claim_fitting, read_queues
from studydb.operations.reservations import read_classes, reserve

LEARN_S = 5.0
"""
After this many seconds a process reads again whether trials of its study ask for resources. While
no trial does, claims are the same as without this module.
"""

RESUME_SCAN_S = 2.0
"""
For this many seconds after a scan of the whole queue, claims scan only the end of the queue. If no
trials ask for resources, the end begins behind the last claimed trial; else it begins with the
first trial that the last read of the queues has found. The reason: while a transaction keeps an old
snapshot, PostgreSQL cannot remove the index entries of claimed trials, and a scan of the whole
queue reads these entries, too (3 ms for 20,000 entries). A trial that returns to an earlier
position waits for a scan of the whole queue.
"""


NEVER = -inf


class Fitting:
    """
    Which trials of a study fit, for the slots of one worker or the threads of one own loop.

    If trials of the study ask for resources, and this process offers limited resources, one slot at
    a time searches for a trial, so that two slots do not count on the same free resources. A search
    whose claim got no answer keeps the turn, because the claim may have succeeded.

    Attributes:
        queues: The study's resource classes and their queues, as this process has read them.
    """

    def __init__(
        self,
        database: Database,
        study: Study,
        *,
        worker_id: int,
        capacity: Capacity = UNLIMITED,
        free_cards: Callable[[], Sequence[float]] | None = None,
        wait_for_cards: Callable[[bool], None] = lambda _: None,
        reserve_after_s: float = RESERVE_AFTER_S,
        takes_turns: bool = True,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        """
        Prepare to search; nothing is read yet.

        Args:
            takes_turns: False if the caller lets only one thread at a time search or look. Then
                there is no turn, which Ctrl-C could leave with a thread that no longer searches.
            free_cards: Returns, for each GPU, the part (0 to 1) that no process has locked. The
                argument is None if only this process uses the GPUs.
            wait_for_cards: Shows other workers whether a trial waits here for GPUs that they hold.
        """
        self._database, self._study, self._worker_id = database, study, worker_id
        self._clock_s, self._wait_for_cards = clock_s, wait_for_cards
        self._learned_s = self._scanned_s = NEVER
        self._turn = threading.Lock() if takes_turns else None
        self._learning = threading.Lock()
        self._refused: set[str] = set()
        self.ledger = Ledger(capacity, free_cards)
        self.queues = ClassQueues(
            self.ledger,
            reserve_after_s=reserve_after_s,
            reserve=self._reserve,
            clock_s=clock_s,
        )

    @property
    def shares(self) -> bool:
        """Whether slots search in turns, so that two do not count on the same free resources."""
        return self.is_classed and not self.is_unlimited

    @property
    def is_classed(self) -> bool:
        """Whether the study or a trial of it asks for resources, as far as this process knows."""
        return self.queues.is_classed

    @property
    def is_unused(self) -> bool:
        """Whether trials ask for resources, and none of them runs in this process."""
        return self.is_classed and self.ledger.n_held == 0

    def learn(self, *, now: bool = False) -> None:
        """
        Read the study's resource classes, if the last read is 5 s old or `now` is True.

        Other slots wait for this read: before the first read they would claim as if no trial asked
        for anything.
        """
        with self._learning:
            if now or self._clock_s() - self._learned_s >= LEARN_S:
                self.queues.learn(read_classes(self._database, self._study))
                self._learned_s = self._clock_s()

    @property
    def is_unlimited(self) -> bool:
        """Whether every request for resources fits."""
        return self.ledger.capacity.is_unlimited

    def look(self) -> list[str] | None:
        """
        Read the queues; return the classes that fit now, or None if all fit or none is known.

        No queues are read if every request fits, if this process knows of no classes, or while
        another slot searches. A process that knows of no classes cannot find a trial whose class
        was made after the process last read the classes. So, if its search finds no trial, it reads
        the classes again.
        """
        if self._learned_s == NEVER:
            self.learn()
        if not self.is_classed or self.is_unlimited:
            return None
        if self.take_turn(0.0):  # else another slot searches, and reads the queues
            try:
                read_queues(self._database, self._study, self.queues)
            finally:
                self.end_turn()
        return self.queues.fitting()

    def show_wait(self, *, makes_new: bool) -> None:
        """
        Show other workers of the host whether a trial waits here for GPUs that they hold.

        Args:
            makes_new: Whether the study makes new trials. If a function says what each of them
                asks for, a new trial may be of any known class.
        """
        if self.queues.ledger.shares_cards:
            new = (
                (self.queues.names if self._study.asks_by_config else [OF_STUDY])
                if makes_new
                else []
            )
            self._wait_for_cards(self.queues.awaits_cards(new))

    def limits(self) -> list[str] | None:
        """Return the classes that fit now; None if all classes fit or there are none."""
        return None if self.is_unlimited else self.names()

    def names(self) -> list[str] | None:
        """Return the classes that fit now; None in a study without classes."""
        return self.queues.fitting() if self.is_classed else None

    def take_turn(self, timeout_s: float) -> bool:
        """Take the turn to search; False if another slot keeps the turn for all of this time."""
        return self._turn is None or self._turn.acquire(timeout=timeout_s)

    def end_turn(self) -> None:
        """Give up the turn to search."""
        if self._turn is not None:
            self._turn.release()

    def claim(self, claimant: Claimant, *, again: bool) -> Claim | None:
        """Claim the first trial that fits; the caller has the turn."""
        now_s = self._clock_s()
        after_position = self.queues.after_position
        if now_s - self._scanned_s >= RESUME_SCAN_S:
            self._scanned_s, after_position = now_s, QUEUE_START
        return claim_fitting(
            self._database,
            self._study,
            claimant,
            self.queues,
            again=again,
            after_position=after_position,
        )

    def request_of(self, claim: Claim) -> Resources:
        """Return what a claimed trial asks for."""
        known = self.queues.request_of(claim.resource_class)
        if known is None:
            self.learn(now=True)
            known = self.queues.request_of(claim.resource_class)
        return Resources() if known is None else known

    def hold(self, claim: Claim) -> bool:
        """
        Record that a claimed trial uses the resources that it asks for; False if they are not free.

        If the locks of the GPUs cannot be read, nothing counts as free: the trial is given back,
        and the next search raises the error. A second call for the same claim changes nothing.
        """
        is_held = self.granted(claim) is not None
        with suppress(HostError):
            is_held = is_held or self.ledger.hold(claim.lease.token, self.request_of(claim))
        if not is_held:
            self._refused.add(claim.lease.token)
        return is_held

    def place(self, claim: Claim, cards: Sequence[int]) -> None:
        """Record which of the worker's GPUs a claimed trial has locked."""
        self.ledger.place(claim.lease.token, cards)

    def granted(self, claim: Claim) -> Resources | None:
        """Return what a trial holds; None if nothing is recorded for it."""
        return self.ledger.held_by(claim.lease.token)

    def is_refused(self, claim: Claim) -> bool:
        """Whether `hold` returned False, because what the trial asks for was not free."""
        return claim.lease.token in self._refused

    def release(self, claim: Claim) -> None:
        """Record that a trial uses nothing any more, because nothing of it runs in this process."""
        self.ledger.release(claim.lease.token)
        self._refused.discard(claim.lease.token)

    def _reserve(self, position: QueuePosition | None) -> bool:
        number = None if position is None else position.number
        try:
            return reserve(self._database, self._study, worker_id=self._worker_id, number=number)
        except StorageTransient:
            return False  # the caller tries again some seconds later
