"""
Which resource class a worker claims its next trial from.

A resource class holds the trials of a study that ask for the same amounts. A worker chooses by what
it offers, by what its trials use now, and by the queues that it has read from the database.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic

from msgspec import structs

from studydb.domain.records import QUEUE_START, QueuePosition
from studydb.domain.resources import Capacity, Ledger, Resources

READ_AGAIN_S = 0.1
"""
For how long a worker uses the queues that it has read. A read of 64 classes takes as long as a
claim, so a worker that claims thousands of trials per second does not read queues for each claim.
"""

RESERVE_AFTER_S = 60.0
"""
If the first trial that a worker could run does not fit beside its running trials, the worker starts
smaller trials for this many seconds. Then the worker is reserved for the first trial.
"""

MOST_POSITIONS = 128
"""About how many positions one read asks for, over all classes: at least two of each class."""

_RETRY_S = 5.0
"""How many seconds a worker waits before it tries again to be reserved for the same trial."""


@dataclass(slots=True)
class KnownClass:
    """
    A resource class and its queue, as the last read saw them.

    Attributes:
        request: What each trial of the class asks for.
        first: The position of the first trial that waits, or, after `skip`, a lower bound of this
            position. None if no trial waits, no trial may start, or the queue was not read yet.
        later: The positions that follow `first`, ascending.
        is_cut: Whether the class may have more positions than `first` and `later`.
    """

    request: Resources
    first: QueuePosition | None = None
    later: deque[QueuePosition] = field(default_factory=deque)
    is_cut: bool = False

    def skip(self, position: QueuePosition) -> None:
        """Forget the positions up to `position`, whose trial was claimed."""
        later = self.later
        while later and later[0] <= position:
            later.popleft()
        if later:
            self.first = later.popleft()
        else:
            self.first = QueuePosition(position[0], position[1] + 1) if self.is_cut else None


@dataclass(slots=True)
class _Blocked:
    """
    The first trial in the queues that would fit if the worker ran no trials. It does not fit now.

    Attributes:
        name: The trial's class.
        since_s: When this worker first found that the trial does not fit, by `clock_s`.
    """

    name: str
    position: QueuePosition
    since_s: float


class ClassQueues:
    """
    The queues of a study's resource classes, as one worker uses them.

    Only one slot of the worker at a time reads the queues and claims by them; other slots may call
    `fitting` at any time.

    Of the trials that fit, the first by priority and number is claimed. If an earlier trial does
    not fit now, but would fit if the worker ran no trials, smaller trials are started before it for
    `reserve_after_s` at most. Then the worker is reserved for the earlier trial, if no other worker
    is reserved for this trial. A reserved worker starts no other trial until the earlier trial is
    no longer the first, for example because it has started. There is one exception. If the reserved
    trial waits only for GPUs that other workers of the host hold, the worker still starts trials
    that need no GPU and leave the reserved trial enough of the other resources.

    Attributes:
        reserved: The position of the trial that the worker is reserved for; None without one.
        after_position: The position just before the first position of all queues, as of the last
            read of the queues.
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
            reserve: Stores the position of the trial that the worker is reserved for; None ends the
                reservation. Returns False if another worker is reserved for the trial, or if the
                answer was lost.
        """
        self.ledger = ledger
        self._known: dict[str, KnownClass] = {}
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
        """How many positions of each class the next read returns at most."""
        return max(2, MOST_POSITIONS // max(1, len(self._known)))

    def learn(self, classes: Mapping[str, Resources]) -> None:
        """
        Take in the classes of the study and their requests, and keep the positions that were read.

        Known classes that are not in `classes` are kept, because a study never loses a class.
        """
        before = self._known
        self._known = before | {  # another slot may have read a newer class meanwhile
            name: replace(before[name], request=request) if name in before else KnownClass(request)
            for name, request in classes.items()
        }
        self._fitting = None

    def take_in(
        self, queues: Mapping[str, tuple[Resources, list[QueuePosition] | None]], *, depth: int
    ) -> None:
        """
        Take in what a read of the queues has returned.

        Args:
            queues: Requests and positions by class. The positions are None if no trial of the study
                may start at the moment; in that case, `_blocked` stays the same.
            depth: How many positions of each class the read asked for.
        """
        self._read_at_s = self._clock_s()
        self._known = {
            name: KnownClass(
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
        # Read each attribute once: another slot may replace its value at any time.
        blocked, known, free = self._blocked, self._known, self.ledger.free
        reserved_class = None
        if blocked is not None and self.reserved is not None:
            reserved_class = blocked.name
        cached = self._fitting
        if cached is not None and cached[0] is free and cached[1] == reserved_class:
            return cached[2]
        may_start = self._may_start(reserved_class)
        names = [name for name, one in known.items() if may_start(name, one.request)]
        if not self.ledger.shares_cards:
            self._fitting = free, reserved_class, names
        return names

    def _fits_now(self) -> Callable[[Resources], bool]:
        """
        Return a function that tells whether a request fits beside the trials that run now.

        Other workers may hold GPUs of the host. Which GPUs are free is looked up once, and only if
        a class asks for GPUs.
        """
        asks_gpus = any(one.request.gpus for one in self._known.values())
        return (self.ledger.free_now() if asks_gpus else self.ledger.free).fits

    def _may_start(self, reserved_class: str | None) -> Callable[[str, Resources], bool]:
        """
        Return a function that tells, by a class's name and request, whether its trials may start.

        Args:
            reserved_class: The class of the trial that the worker is reserved for; None if the
                worker is not reserved.
        """
        fits = self._fits_now()
        awaited = None if reserved_class is None else self._known.get(reserved_class)
        if awaited is None:
            return lambda _, asked: fits(asked)
        spare = self._spare(awaited.request)
        return lambda name, asked: (
            fits(asked) and (name == reserved_class or (spare is not None and spare.fits(asked)))
        )

    def _spare(self, awaited: Resources) -> Capacity | None:
        """
        Return what other trials may use while the worker is reserved for a trial; None for nothing.

        If this worker's own trials leave enough for the reserved trial, the reserved trial waits
        only for GPUs that other workers of the host hold, perhaps for days. Trials that need no GPU
        and fit beside the reserved trial do not delay it.

        Args:
            awaited: The request of the reserved trial.
        """
        free = self.ledger.free
        if free.is_unlimited or not free.fits(awaited):
            return None
        return structs.replace(free.minus(awaited), cards=())

    @property
    def names(self) -> list[str]:
        """The names of the classes that are known."""
        return list(self._known)

    def awaits_cards(self, new: Container[str]) -> bool:
        """
        Tell whether a trial waits only for GPUs that other workers of the host hold.

        Args:
            new: The classes of which a new trial may be made. Any other class counts only if a
                trial of it is PENDING.
        """
        free, fits = self.ledger.free, self._fits_now()
        return any(
            one.request.gpus and free.fits(one.request) and not fits(one.request)
            for name, one in self._known.items()
            if one.first is not None or name in new
        )

    def next_claim(self, without: Container[str]) -> tuple[str, QueuePosition] | None:
        """
        Choose the class of the first trial that fits.

        Args:
            without: Classes that must not be chosen.

        Returns:
            The class and the position of its first trial; None if no waiting trial fits.
        """
        best: QueuePosition | None = None
        chosen = ""
        fitting, known = self.fitting(), self._known
        for name in fitting:
            first = known[name].first
            if first is not None and (best is None or first < best) and name not in without:
                best, chosen = first, name
        return None if best is None else (chosen, best)

    def claimed(self, name: str, position: QueuePosition) -> None:
        """Forget a trial that this worker has claimed, and the positions before it in its class."""
        if (known := self._known.get(name)) is not None:
            known.skip(position)
        if self._blocked is not None and self._blocked.name == name:
            self._unblock()

    def emptied(self, name: str) -> None:
        """Forget the positions of a class in which a claim has found no trial."""
        self._known[name] = KnownClass(self._known[name].request)

    def forget(self) -> None:
        """Make `must_read` True, so that the queues are read before the next claim."""
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
            self._may_be_published = True  # the answer may be lost after the reservation is stored
            if self._reserve(self._blocked.position):
                self.reserved = self._blocked.position

    def _unblock(self) -> None:
        self._blocked = self._tried_at_s = self.reserved = None
        self._withdraw()

    def _withdraw(self) -> None:
        if self._may_be_published and self._reserve(None):
            self._may_be_published = False
