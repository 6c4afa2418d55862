"""Which class of trials a worker claims next, from what the worker offers and what it has read."""

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from studydb.domain.records import QUEUE_START, QueuePosition
from studydb.domain.resources import Capacity, Ledger, Resources

READ_AGAIN_S = 0.1
"""
How long a worker claims by the queues that it has read. A read of 64 classes takes as long as a
claim, so a worker that claims thousands of trials per second does not read them for each claim.
"""

RESERVE_AFTER_S = 60.0
"""How long the first trial of the queue is passed by smaller ones, before it reserves a worker."""

MOST_POSITIONS = 128
"""About how many positions of all classes one read returns."""

_RETRY_S = 5.0


@dataclass(slots=True)
class Known:
    """
    A class, as the last read saw it.

    Attributes:
        first: No trial of the class comes before this position; None if no trial waits.
        later: The positions that follow, ascending.
        is_cut: Whether the class may have more positions than these.
    """

    request: Resources
    first: QueuePosition | None = None
    later: deque[QueuePosition] = field(default_factory=deque)
    is_cut: bool = False

    def skip(self, position: QueuePosition) -> None:
        """Forget the positions up to this one, whose trial was claimed."""
        later = self.later
        while later and later[0] <= position:
            later.popleft()
        if later:
            self.first = later.popleft()
        else:
            self.first = QueuePosition(position[0], position[1] + 1) if self.is_cut else None


@dataclass(slots=True)
class _Blocked:
    """The first trial of the queue that would fit the empty worker, while it does not fit."""

    name: str
    position: QueuePosition
    since_s: float


class ClassQueues:
    """
    The queues of a study's classes, for one worker; its slots take turns.

    The first trial by priority and number that fits is claimed. While the first trial that fits the
    empty worker does not fit beside the trials that run, smaller trials pass it, for
    `reserve_after_s` at most. Then the worker is reserved: it starts no other trial before that one
    has started here or elsewhere. While that trial only waits for GPUs that other workers of the
    host hold, trials without GPUs start that leave it enough of the rest.

    Attributes:
        reserved: The trial that the worker is reserved for; None without one.
        after_position: The position just before the first of all queues, when they were last read.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        reserve_after_s: float = RESERVE_AFTER_S,
        reserve: Callable[[QueuePosition | None], bool] = lambda _: True,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        """
        Begin without a class.

        Args:
            reserve: Publishes for which trial the worker is reserved, or that it is not; False if
                another worker has reserved itself for the trial, or if the answer was lost.
        """
        self.ledger = ledger
        self._known: dict[str, Known] = {}
        self._fitting: tuple[Capacity, str | None, list[str]] | None = None
        self._clock_s, self._reserve_after_s, self._reserve = clock_s, reserve_after_s, reserve
        self._read_at_s: float | None = None
        self._blocked: _Blocked | None = None
        self._tried_at_s: float | None = None
        self._may_be_published = False
        self.reserved: QueuePosition | None = None
        self.after_position = QUEUE_START

    @property
    def is_classed(self) -> bool:
        """Whether the study or a trial of it asks for resources."""
        return bool(self._known)

    @property
    def must_read(self) -> bool:
        """Whether the queues are to be read before the next claim."""
        return self._read_at_s is None or self._clock_s() - self._read_at_s > READ_AGAIN_S

    @property
    def depth(self) -> int:
        """How many positions of each class the next read returns."""
        return max(2, MOST_POSITIONS // max(1, len(self._known)))

    def learn(self, classes: Mapping[str, Resources]) -> None:
        """Take in the classes of the study, which only grow; what is known of queues stays."""
        before = self._known
        self._known = before | {  # a slot that searches may have read a newer class meanwhile
            name: replace(before[name], request=request) if name in before else Known(request)
            for name, request in classes.items()
        }
        self._fitting = None

    def take_in(
        self, queues: Mapping[str, tuple[Resources, list[QueuePosition] | None]], *, depth: int
    ) -> None:
        """
        Take in what a read of the queues has returned.

        Args:
            queues: Requests and positions by class; without positions (None), no trial of the study
                may start at the moment. That does not end the wait of a trial that was passed.
        """
        self._read_at_s = self._clock_s()
        self._known = {
            name: Known(
                request,
                positions[0] if positions else None,
                deque(positions[1:] if positions else ()),
                is_cut=positions is not None and len(positions) >= depth,
            )
            for name, (request, positions) in queues.items()
        }
        self._fitting = None
        firsts = [one.first for one in self._known.values() if one.first is not None]
        priority, number = min(firsts, default=QUEUE_START)
        self.after_position = QueuePosition(priority, number - 1) if firsts else QUEUE_START
        if self._blocked is None:
            self._withdraw()
        if all(positions is not None for _, positions in queues.values()):
            self._look_for_blocked()

    def request_of(self, name: str) -> Resources | None:
        """Return the request of a class; None for a class that is not known yet."""
        known = self._known.get(name)
        return None if known is None else known.request

    def fitting(self) -> list[str]:
        """Return the classes whose trials this worker may start now."""
        blocked, known, free = self._blocked, self._known, self.ledger.free  # slots look meanwhile
        only = blocked.name if blocked is not None and self.reserved is not None else None
        cached = self._fitting
        if cached is not None and cached[0] is free and cached[1] == only:
            return cached[2]
        may_start = self._may_start(only)
        names = [name for name, one in known.items() if may_start(name, one.request)]
        if not self.ledger.shares_cards:
            self._fitting = free, only, names
        return names

    def _fits_now(self) -> Callable[[Resources], bool]:
        """
        Return a function that tells whether a request fits beside what runs now.

        Other workers of the host may hold its GPUs. This is looked up once, and only if a class
        asks for GPUs.
        """
        asks_gpus = any(one.request.gpus for one in self._known.values())
        return (self.ledger.free_now() if asks_gpus else self.ledger.free).fits

    def _may_start(self, only: str | None) -> Callable[[str, Resources], bool]:
        """
        Return a function that tells whether a class may start now, by its name and its request.

        Args:
            only: The class of the trial that the worker is reserved for; None without one.
        """
        fits, awaited = self._fits_now(), self._known.get(only) if only is not None else None
        if awaited is None:
            return lambda _, asked: fits(asked)
        spare = self._spare(awaited.request)
        return lambda name, asked: (
            fits(asked) and (name == only or (spare is not None and spare.fits(asked)))
        )

    def _spare(self, awaited: Resources) -> Capacity | None:
        """
        Return what other trials may use while the worker is reserved for a trial; None for nothing.

        If this worker's own trials leave enough to that trial, it waits for GPUs that other workers
        of the host hold, perhaps for days. Trials without GPUs that fit beside it delay nothing.
        """
        free = self.ledger.free
        if free.is_unlimited or not free.fits(awaited):
            return None
        return replace(free.minus(awaited), cards=())

    @property
    def names(self) -> list[str]:
        """The names of the classes that are known."""
        return list(self._known)

    def awaits_cards(self, new: Container[str]) -> bool:
        """
        Tell whether a trial would start now if no other worker of the host held GPUs.

        Args:
            new: The classes of trials that may be made; of the others a trial must be PENDING.
        """
        free, fits = self.ledger.free, self._fits_now()
        return any(
            one.request.gpus and free.fits(one.request) and not fits(one.request)
            for name, one in self._known.items()
            if one.first is not None or name in new
        )

    def next_claim(self, without: Container[str]) -> tuple[str, QueuePosition] | None:
        """Choose the class of the first trial that fits; None if no class is left."""
        best: QueuePosition | None = None
        chosen = ""
        fitting, known = self.fitting(), self._known
        for name in fitting:
            first = known[name].first
            if first is not None and (best is None or first < best) and name not in without:
                best, chosen = first, name
        return None if best is None else (chosen, best)

    def claimed(self, name: str, position: QueuePosition) -> None:
        """Forget a trial that this worker has claimed, and those before it in its class."""
        if (known := self._known.get(name)) is not None:
            known.skip(position)
        if self._blocked is not None and self._blocked.name == name:
            self._unblock()

    def emptied(self, name: str) -> None:
        """Forget the queue of a class from which a claim has got nothing."""
        self._known[name] = Known(self._known[name].request)

    def forget(self) -> None:
        """Read the queues before the next claim."""
        self._read_at_s = None

    def _look_for_blocked(self) -> None:
        whole, now_s = self.ledger.capacity, self._clock_s()
        firsts = [
            (one.first, name)
            for name, one in self._known.items()
            if one.first is not None and whole.fits(one.request)
        ]
        position, name = min(firsts, default=(None, ""))
        if self._blocked is not None and self._blocked.position != position:
            self._unblock()
        if position is None:
            return
        if self._blocked is not None:
            self._blocked.name = name  # a person may have changed what the trial asks for
        if self._fits_now()(self._known[name].request):
            return
        if self._blocked is None:
            self._blocked = _Blocked(name, position, now_s)
        self._try_to_reserve(now_s)

    def _try_to_reserve(self, now_s: float) -> None:
        assert self._blocked is not None
        if self.reserved is not None or now_s - self._blocked.since_s < self._reserve_after_s:
            return
        if self._tried_at_s is None or now_s - self._tried_at_s >= _RETRY_S:
            self._tried_at_s = now_s
            self._may_be_published = True  # also if the answer is lost
            if self._reserve(self._blocked.position):
                self.reserved = self._blocked.position

    def _unblock(self) -> None:
        self._blocked = self._tried_at_s = self.reserved = None
        self._withdraw()

    def _withdraw(self) -> None:
        if self._may_be_published and self._reserve(None):
            self._may_be_published = False
