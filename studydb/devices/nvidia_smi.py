"""What `nvidia-smi` tells: the cards of this host, and the processes that use them."""

import re
import subprocess

from msgspec import Struct

PROGRAM = "nvidia-smi"

TIMEOUT_S = 20.0
"""How long a call may take. Without NVIDIA's persistence daemon, a call first wakes each card."""

_CARD = re.compile(r"GPU\s+([0-9]+):.*\(UUID:\s*(GPU-[^)\s]+)\)")
_INSTANCE = re.compile(r"\s+MIG\b.*\(UUID:\s*(MIG-[^)\s]+)\)")


class Card(Struct, frozen=True):
    """
    A card of this host.

    Attributes:
        index: Its number, in the order of the PCI bus.
        instances: The UUIDs of its MIG instances; empty if it has none.
    """

    index: int
    uuid: str
    instances: tuple[str, ...] = ()


def list_cards() -> tuple[Card, ...]:
    """Return the cards; none if the program is missing, fails, or takes longer than 20 s."""
    cards: list[Card] = []
    for line in _lines("-L"):
        if found := _CARD.match(line):
            cards.append(Card(int(found[1]), found[2]))
        elif cards and (found := _INSTANCE.match(line)):
            last = cards.pop()
            cards.append(Card(last.index, last.uuid, (*last.instances, found[1])))
    return tuple(cards)


def list_users() -> tuple[tuple[str, int], ...]:
    """Return each process that computes on a card: the card's UUID, and the pid on the host."""
    users = []
    for line in _lines("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"):
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if pid.isdecimal():
            users.append((uuid, int(pid)))
    return tuple(users)


def _lines(*arguments: str) -> list[str]:
    try:
        answer = subprocess.run(
            [PROGRAM, *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.decode(errors="replace").splitlines()
