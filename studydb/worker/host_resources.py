"""What a worker offers to its trials, and what it gives to each trial."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from studydb.devices import Devices, MemoryLimits
from studydb.domain.errors import HostError
from studydb.domain.resources import Capacity, Resources, read_capacity
from studydb.worker.cores import available_cores
from studydb.worker.holdings import Holdings
from studydb.worker.worker_options import WorkerOptions

GB = 10**9
TAKE_TRIES, TAKE_PAUSE_S = 10, 0.05
"""How many times a worker tries to lock a trial's devices, and the pause between two tries."""


class HostResources:
    """
    The host's resources, as the trials of one worker share them.

    Attributes:
        capacity: What the worker offers.
    """

    def __init__(self, capacity: Capacity, devices: Devices) -> None:
        self.capacity, self._devices = capacity, devices
        self._memory_limits: MemoryLimits | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, options: WorkerOptions, *, say: Callable[[str], None]) -> "HostResources":
        """
        Read from the options what the worker offers; read from the host what the options omit.

        With `--gpus auto`, a host that cannot lock its devices offers none, and the worker says so.

        Raises:
            UsageError: An option is wrong, or names a device that does not exist.
            HostError: Named devices cannot be locked.
        """
        try:
            devices = Devices.of(options.gpus)
        except HostError as error:
            if options.gpus != "auto":
                raise
            say(f"this worker offers no GPUs: {error}")
            devices = Devices.of("none")
        capacity = read_capacity(
            cpus=available_cores() if options.cpus is None else options.cpus,
            gpus=len(devices.offered()),
            memory_gb=memory_gb() if options.memory_gb is None else options.memory_gb,
            custom=options.resources,
            tags=options.tags,
        )
        return cls(capacity, devices)

    def free_cards(self) -> tuple[float, ...]:
        """Return the part of each device that this worker may take; see `Devices.free_parts`."""
        return self._devices.free_parts()

    def wait_for_cards(self, is_waiting: bool) -> None:  # noqa: FBT001  `Fitting` calls it
        """Show other workers of this host whether a trial waits here for devices that they hold."""
        self._devices.show_wait(is_waiting=is_waiting)

    def take(self, asked: Resources) -> Holdings | None:
        """
        Take the devices and make the memory limit of a trial.

        Returns:
            None if every try has failed: other workers of this host held the devices, or another
            slot, perhaps of another worker, had the turn to choose devices.

        Raises:
            HostError: The devices cannot be locked any more.
        """
        for _ in range(TAKE_TRIES):
            grant = self._devices.take(asked.gpus)
            if grant is not None:
                memory = (
                    self._limits().limit(int(asked.memory_gb * GB)) if asked.memory_gb else None
                )
                return Holdings(grant, memory)
            time.sleep(TAKE_PAUSE_S)
        return None

    def _limits(self) -> MemoryLimits:
        with self._lock:
            # Made only if a trial has a limit: `of_this_process` may change the worker's cgroup.
            if self._memory_limits is None:
                self._memory_limits = MemoryLimits.of_this_process()
            return self._memory_limits


def memory_gb(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> float:
    """Return the host's memory, or the limit of this container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(limit.read_text(encoding="ascii")))
    return round(total / GB, 3)
