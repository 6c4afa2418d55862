"""
Find the devices that a worker offers to its trials.

The devices come from the worker's environment, from `nvidia-smi`, or from the option `--gpus`.
"""

import os
import shlex
from collections.abc import Iterable, Mapping

from msgspec import Struct

from studydb.devices import nvidia_smi
from studydb.devices.families import CUDA, Family, family_here
from studydb.devices.nvidia_smi import Card
from studydb.domain.errors import UsageError
from studydb.processes import boot_id

AUTO, NONE = "auto", "none"

_BATCH_JOB = "SLURM_JOB_ID"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""With this variable, CUDA numbers the cards as `nvidia-smi` does, not by their speed."""


class Device(Struct, frozen=True):
    """
    A device that trials may hold.

    Attributes:
        name: The device's entry in the variable that tells a trial its devices.
        lock: The name of the lock on this host: the UUID if it is known.
        card: The UUID of the card, or of the card that the MIG instance is part of; None if
            `nvidia-smi` lists no cards.
    """

    name: str
    lock: str
    card: str | None = None

    @property
    def card_lock(self) -> str | None:
        """The name of the whole card's lock, if this device is a part of a card."""
        return None if self.card == self.lock else self.card


class Offer(Struct, frozen=True):
    """
    The devices of one worker.

    Attributes:
        family: None if the worker does not hand out devices; its trials see what the worker sees.
        settings: Variables for the trials that hold a device.
    """

    family: Family | None = None
    devices: tuple[Device, ...] = ()
    settings: Mapping[str, str] | None = None


def find_devices(asked: str, environ: Mapping[str, str] = os.environ) -> Offer:
    """
    Find the devices that a worker may hand out.

    Args:
        asked: "auto", "none", or indices and UUIDs, separated by commas.

    Raises:
        UsageError: An entry of `asked` is invalid (see `Family.entry`), fits no device or more than
            one, names the same device as another entry, or names a device that the worker may not
            use.
    """
    if asked.strip().casefold() == NONE:
        return Offer()
    family = family_here(environ)
    cards = nvidia_smi.list_cards() if family is CUDA else ()
    inherited = _inherited(family, cards, environ)
    if asked.strip().casefold() == AUTO:
        if inherited is None:  # a batch job without GPUs may see the GPUs of other jobs
            inherited = () if _BATCH_JOB in environ else _all_of(cards)
        return Offer(family, inherited) if inherited else Offer()
    return _typed(asked, family, cards, inherited, environ)


def _inherited(
    family: Family, cards: tuple[Card, ...], environ: Mapping[str, str]
) -> tuple[Device, ...] | None:
    """Return the devices that the environment gives the worker; None if it does not limit them."""
    if family.variable not in environ:
        return None
    found: dict[str, Device] = {}
    for entry in family.entries(environ[family.variable]):
        device = _resolve(entry, cards, environ)
        if device is None:  # the runtime ignores this entry and all later entries
            break
        found.setdefault(device.lock, device)
    return tuple(found.values())


def _typed(
    asked: str,
    family: Family,
    cards: tuple[Card, ...],
    inherited: tuple[Device, ...] | None,
    environ: Mapping[str, str],
) -> Offer:
    entries = [entry.strip() for entry in asked.split(",")]
    found: dict[str, Device] = {}
    for entry in entries:
        if not family.entry.fullmatch(entry):
            raise UsageError(
                f"--gpus has {entry!r}, which is neither {' nor '.join(family.kinds)}. Give auto, "
                f"none, or a list such as {family.example}."
            )
        device = _resolve(entry, cards, environ)
        if device is None:
            raise UsageError(
                f"--gpus names {entry}, which fits no device of this host, or more than one. "
                f"Choose from what `nvidia-smi -L` lists: {_names(_card_names(cards))}."
            )
        if inherited is not None and device.lock not in {one.lock for one in inherited}:
            cure = (
                "Name some of these, or unset the variable."
                if inherited
                else "Unset the variable, or give --gpus none."
            )
            raise UsageError(
                f"--gpus names {entry}, but {family.variable}="
                f"{shlex.quote(environ[family.variable])} gives this worker "
                f"{_names(one.name for one in inherited)}. {cure}"
            )
        if device.lock in found:
            raise UsageError(
                f"--gpus names one device twice: {found[device.lock].name} and {entry}. "
                "Name each device once."
            )
        found[device.lock] = device
    has_index = any(entry.isdecimal() for entry in entries)
    return Offer(family, tuple(found.values()), _ORDER if has_index and family is CUDA else None)


def _all_of(cards: Iterable[Card]) -> tuple[Device, ...]:
    """Return all MIG instances, and the cards that have none."""
    return tuple(
        Device(uuid, uuid, card.uuid) for card in cards for uuid in card.instances or (card.uuid,)
    )


def _resolve(entry: str, cards: tuple[Card, ...], environ: Mapping[str, str]) -> Device | None:
    """
    Find the device of an entry; None if the entry fits no device, or more than one.

    If `nvidia-smi` lists the cards, an index and a UUID of one card get the same lock. Otherwise
    the name of an index's lock contains the host's boot ID and the batch job's ID, because each job
    may number its devices from 0.
    """
    if not cards:
        is_uuid = entry.startswith(("GPU-", "MIG-"))
        return Device(entry, entry if is_uuid else _lock_of_index(entry, environ))
    if entry.isdecimal():
        found = [(card.uuid, card.uuid) for card in cards if card.index == int(entry)]
    else:
        known = [(uuid, card.uuid) for card in cards for uuid in (card.uuid, *card.instances)]
        exact = [pair for pair in known if pair[0] == entry]
        found = exact or [pair for pair in known if pair[0].startswith(entry)]
    return Device(entry, *found[0]) if len(found) == 1 else None


def _lock_of_index(index: str, environ: Mapping[str, str]) -> str:
    return f"{boot_id()}-{environ.get(_BATCH_JOB, '')}-{index}"


def _card_names(cards: Iterable[Card]) -> list[str]:
    return [name for card in cards for name in (str(card.index), card.uuid, *card.instances)]


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "no device"
