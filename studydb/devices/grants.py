"""The devices that a worker offers, and those that one trial holds."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from studydb.devices import nvidia_smi
from studydb.devices.discovery import Device, Offer, find_devices
from studydb.devices.families import CUDA
from studydb.devices.lock_files import MORE_FILES, WHOLE, LockFile, lock_directory, turn
from studydb.devices.sharing import Turns
from studydb.domain.errors import HostError
from studydb.domain.resources import choose_cards
from studydb.processes import exists, has_host_pids, session_of

RELEASE_S = 10.0
"""The longest wait for the driver to free the devices that the processes of a trial have used."""

_PAUSE_S = 0.25


@dataclass(eq=False)
class DeviceGrant:
    """
    The devices, or the part of one, that a trial holds until `release`.

    Attributes:
        names: The devices' entries (`Device.name`).
        places: The positions of the devices among those that the worker offers.
        variables: What `environment` returns.
        descriptors: The open lock files. The trial's process inherits them, so that the devices
            stay locked until that process has ended, even if the worker dies before.
    """

    names: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()
    _cards: frozenset[str] = frozenset()
    _leaders: set[int] = field(default_factory=set)
    _releasing: Callable[[], None] = lambda: None

    def environment(self) -> dict[str, str]:
        """Return the variables that let the trial see only its devices; {} for `NO_DEVICES`."""
        return dict(self.variables)

    def run_by(self, pid: int) -> None:
        """Record that the processes of the session that `pid` leads use the devices."""
        self._leaders.add(pid)

    def release(self, *, patience_s: float = RELEASE_S) -> str | None:
        """
        Give the devices back, after a wait of at most `patience_s` for the driver to free them.

        There is no wait for devices that `nvidia-smi` does not list, nor in a container whose pids
        are not the host's. Call this after the trial's processes have ended; a second call does
        nothing.

        Returns:
            None; or, if processes still use devices after `patience_s`, a line that names them.
        """
        try:
            users = self._await_users(patience_s) if self._leaders else ()
        finally:
            if self.descriptors:
                self._releasing()
            for descriptor in self.descriptors:
                with suppress(OSError):
                    os.close(descriptor)
            self.descriptors = ()
            self._leaders.clear()
        if not users:
            return None
        listed = ", ".join(f"process {pid} still uses {card}" for card, pid in users)
        return f"{listed}, {patience_s:g} s after the end of the trial; the next trial may fail"

    def _await_users(self, patience_s: float) -> tuple[tuple[str, int], ...]:
        if not self._cards or not has_host_pids():
            return ()
        deadline_s = time.monotonic() + patience_s
        while users := self._users():
            if time.monotonic() >= deadline_s:
                return users
            time.sleep(_PAUSE_S)
        return ()

    def _users(self) -> tuple[tuple[str, int], ...]:
        """
        Return the card and the pid of each process that `nvidia-smi` lists on the trial's cards.

        A process counts if it is in a session of the trial, or if it has ended but is still listed.
        """
        return tuple(
            (card, pid)
            for card, pid in nvidia_smi.list_users()
            if card in self._cards and (session_of(pid) in self._leaders or not exists(pid))
        )


NO_DEVICES = DeviceGrant(variables=MappingProxyType({}))
"""What a trial holds if its worker hands out no devices: the trial sees what the worker sees."""


class Devices:
    """
    The devices that a worker hands out; its slots share the object.

    Args:
        offer: The devices.
        directory: Where the lock files are; None for no devices.
    """

    def __init__(
        self,
        offer: Offer,
        directory: Path | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._offer, self._directory = offer, directory
        names = [device.lock for device in offer.devices]
        self._turns = None if directory is None else Turns(directory, names, clock_s=clock_s)

    @classmethod
    def of(cls, asked: str, environ: Mapping[str, str] = os.environ) -> "Devices":
        """
        Find the devices of `--gpus`, and check that they can be locked.

        Args:
            asked: "auto", "none", or a list of indices and UUIDs.

        Raises:
            UsageError: See `find_devices`; or the directory that the environment names for the lock
                files cannot be used.
            HostError: This host cannot lock devices.
        """
        offer = find_devices(asked, environ)
        if not offer.devices:
            return cls(offer)
        devices = cls(offer, lock_directory(environ))
        devices.free_parts()
        return devices

    def offered(self) -> tuple[str, ...]:
        """Return the entries of all devices, whether they are free or not."""
        return tuple(device.name for device in self._offer.devices)

    def free_parts(self) -> tuple[float, ...]:
        """
        Return which part of each offered device is free (0 to 1), that is, locked by no process.

        A device that this worker leaves to a waiting worker has no free part (`sharing.py`). A
        later `take` may find less, because another worker may lock a device first.
        """
        with ExitStack() as opened:
            locks = self._open_locks(opened)
            files = {place: lock.file for place, lock in enumerate(locks)}
            left = set() if self._turns is None else self._turns.let_others_first(files)
            return tuple(
                0.0 if place in left else lock.free / WHOLE for place, lock in enumerate(locks)
            )

    def show_wait(self, *, is_waiting: bool) -> None:
        """Show other workers whether a trial of this worker waits for devices that they hold."""
        if self._turns is not None:
            self._turns.show_wait(is_waiting=is_waiting)

    def take(self, gpus: float) -> DeviceGrant | None:
        """
        Lock devices for a trial, without waiting for other trials.

        Args:
            gpus: A whole number, or a part of one device. With 0, the trial sees no device; but if
                the worker hands out no devices, the trial sees what the worker sees.

        Returns:
            None if too few devices are free now, if another slot of any worker keeps the turn, or
            if the trial asks for devices and the worker hands out none.

        Raises:
            HostError: A lock file cannot be used any more, or no more files can be opened.
        """
        if self._directory is None or self._offer.family is None:
            return None if gpus else NO_DEVICES
        self.show_wait(is_waiting=False)  # an idle slot shows its wait again at its next look
        if not gpus:
            return DeviceGrant(variables=self._variables(()))
        if round(gpus * WHOLE) <= 0 or (gpus > 1 and gpus != int(gpus)):
            raise ValueError(f"gpus is {gpus}; it must be a whole number, or a part of 1.")
        with turn(self._directory) as has_turn:
            return self._take(gpus) if has_turn else None

    def _take(self, gpus: float) -> DeviceGrant | None:
        size = round(min(gpus, 1.0) * WHOLE)
        with ExitStack() as opened:
            locks = self._open_locks(opened)
            parts = [lock.free / WHOLE for lock in locks]
            while (places := choose_cards(parts, gpus)) is not None:
                refused = [place for place in places if not locks[place].take(size)]
                if not refused:
                    return self._grant({place: locks[place] for place in places})
                for place in refused:  # e.g. a card of which a MIG instance is locked
                    parts[place] = 0.0
            return None

    def _open_locks(self, opened: ExitStack) -> list["_DeviceLock"]:
        if self._directory is None:
            return []
        return [
            opened.enter_context(closing(_DeviceLock(device, self._directory)))
            for device in self._offer.devices
        ]

    def _grant(self, taken: Mapping[int, "_DeviceLock"]) -> DeviceGrant:
        places = tuple(sorted(taken))
        turns = self._turns
        assert turns is not None
        names = [taken[place].device.name for place in places]
        cards = {lock.device.card for lock in taken.values()} - {None}
        grant = DeviceGrant(
            names=tuple(names),
            places=places,
            variables=self._variables(names),
            descriptors=_copies(taken.values()),
            _cards=frozenset(map(str, cards)) if self._offer.family is CUDA else frozenset(),
            _releasing=partial(turns.release, places),
        )
        turns.taken(places)
        return grant

    def _variables(self, names: Collection[str]) -> dict[str, str]:
        family = self._offer.family
        assert family is not None
        settings = dict(self._offer.settings or {}) if names else {}
        return {family.variable: ",".join(names) or family.nothing, **settings}


def _copies(locks: Iterable["_DeviceLock"]) -> tuple[int, ...]:
    """Copy the descriptors of locks: the copies keep the locks after `close`."""
    copies: list[int] = []
    try:
        for lock in locks:
            copies.extend(map(os.dup, lock.descriptors))
    except OSError as cause:
        for copy in copies:  # without this, the devices would stay locked although no trial runs
            os.close(copy)
        raise HostError(
            f"This host cannot keep the locks of devices: {cause.strerror}. {MORE_FILES}"
        ) from cause
    return tuple(copies)


class _DeviceLock:
    """The lock of one device; for a MIG instance also a shared lock of its card."""

    def __init__(self, device: Device, directory: Path) -> None:
        self.device = device
        self.file = LockFile(directory, device.lock)
        self._card: LockFile | None = None
        if device.card_lock is not None:
            try:
                self._card = LockFile(directory, device.card_lock)
            except BaseException:
                self.file.close()
                raise

    @property
    def free(self) -> int:
        if self._card is not None and not self._card.can_share():
            return 0
        return self.file.free

    def take(self, size: int) -> bool:
        return (self._card is None or self._card.share()) and self.file.lock(size)

    @property
    def descriptors(self) -> list[int]:
        return [file.descriptor for file in (self.file, self._card) if file is not None]

    def close(self) -> None:
        for file in filter(None, (self.file, self._card)):
            file.close()
