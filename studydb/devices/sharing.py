"""
Turns of workers for a host's devices: after long use, a worker lets a waiting worker go first.

A worker whose trial ends sees the free device at once, and other workers look for it every 2 s. So
without turns a worker with many trials would keep the device. A worker that waits holds a lock on a
byte of the device's file until it closes the file or ends. Nothing here gives or takes a device: a
worker that may go first has the device only once its trial has locked the device.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from studydb.devices.lock_files import LockFile
from studydb.domain.errors import HostError

LONG_S = 60.0
"""How long a worker's trials may use a device one after another before waiting workers go first."""

FIRST_S = 5.0
"""
For how long waiting workers may go first after `LONG_S`. A waiting worker needs up to 2 s, until
its next look. The time is limited, because the waiting worker may be suspended, or may also need
other devices that are not free. If no trial of this worker has used a device during the last
`FIRST_S`, the next trial that takes the device begins a new count of `LONG_S`.
"""


@dataclass(slots=True)
class _Use:
    """
    How long this worker has had a device.

    Attributes:
        since_s: When this worker got the device, or when it last began to let others go first.
        n_trials: How many trials now have the device or a part of it.
        released_s: When a trial last released the device.
        first_until_s: Until when a waiting worker goes first.
    """

    since_s: float
    n_trials: int = 0
    released_s: float = 0.0
    first_until_s: float = 0.0


class Turns:
    """
    How one worker shares its devices with other workers; its slots share the object.

    Args:
        names: The names of the lock files, in the order of the worker's devices.
    """

    def __init__(
        self,
        directory: Path,
        names: Collection[str],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._names, self._clock_s = directory, tuple(names), clock_s
        self._uses: dict[int, _Use] = {}
        self._waiting: dict[int, LockFile] = {}
        self._lock = threading.Lock()

    def show_wait(self, *, is_waiting: bool) -> None:
        """Show whether a trial of this worker waits for a device that another worker has."""
        with self._lock, suppress(HostError):  # the worker then waits without showing it
            for place, name in enumerate(self._names if is_waiting else ()):
                if place not in self._waiting:
                    self._waiting[place] = LockFile(self._directory, name)
                    self._waiting[place].show_wait()
            if not is_waiting:
                self._end_wait()

    def _end_wait(self) -> None:
        while self._waiting:
            self._waiting.popitem()[1].close()

    def taken(self, places: Collection[int]) -> None:
        """Record that a trial has got devices, and show that no trial of this worker waits."""
        with self._lock:
            self._end_wait()
            now_s = self._clock_s()
            for place in places:
                use = self._uses.get(place)
                if use is None or (not use.n_trials and now_s - use.released_s > FIRST_S):
                    use = self._uses[place] = _Use(now_s)
                use.n_trials += 1

    def release(self, places: Collection[int]) -> None:
        """
        Record that a trial releases devices.

        Call this before the locks are closed. Otherwise another slot of this worker could take a
        device before a waiting worker's turn is recorded.
        """
        with self._lock:
            now_s = self._clock_s()
            for place in places:
                use = self._uses[place]
                use.n_trials, use.released_s = use.n_trials - 1, now_s
                if now_s - use.since_s >= LONG_S:
                    use.since_s, use.first_until_s = now_s, now_s + FIRST_S

    def let_others_first(self, files: Mapping[int, LockFile]) -> set[int]:
        """
        Return the places of the devices that this worker leaves to a waiting worker now.

        Args:
            files: The opened lock files, by the device's place: its position in `names`.
        """
        with self._lock:
            now_s = self._clock_s()
            return {
                place
                for place, file in files.items()
                if (use := self._uses.get(place)) is not None
                and now_s < use.first_until_s
                and self._waiting.get(place, file).is_awaited()
            }
