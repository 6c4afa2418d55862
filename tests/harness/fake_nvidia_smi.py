"""A stand-in for `nvidia-smi`: it prints the cards and the processes that a test has listed."""

import os
from pathlib import Path

UUIDS = tuple(f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abcd")
"""The UUIDs of the cards of a host with four cards."""

INSTANCES = tuple(f"MIG-{n}{'e' * 7}-0000-0000-0000-000000000000" for n in range(2))
"""The UUIDs of the MIG instances of a card."""

_SCRIPT = """#!/bin/sh
case "$1" in
-L) exec cat "{folder}/cards" ;;
*) exec cat "{folder}/users" ;;
esac
"""


class FakeNvidiaSmi:
    """
    The stand-in in a folder; the folder must come first in PATH.

    Attributes:
        environment: The PATH by which a process finds the stand-in before the real program.
    """

    def __init__(self, folder: Path, *, n_cards: int = 4) -> None:
        self._folder = folder
        self.install(_SCRIPT.format(folder=folder))
        self.list_cards(*UUIDS[:n_cards])
        self.list_users()
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}"}

    def install(self, script: str) -> None:
        """Write a shell script as the program, in place of an earlier one."""
        program = self._folder / "nvidia-smi"
        program.write_text(script)
        program.chmod(0o755)

    def list_cards(self, *uuids: str, instances: tuple[str, ...] = ()) -> None:
        """Write the list of cards; the last card has these MIG instances."""
        lines = [f"GPU {n}: NVIDIA A100-SXM4-80GB (UUID: {uuid})" for n, uuid in enumerate(uuids)]
        lines += [
            f"  MIG 1g.10gb     Device  {n}: (UUID: {uuid})" for n, uuid in enumerate(instances)
        ]
        (self._folder / "cards").write_text("\n".join(lines) + "\n")

    def list_users(self, *users: tuple[str, int]) -> None:
        """Write which processes use which cards; a reader finds the old list or the new one."""
        temporary = self._folder / "users.new"
        temporary.write_text("".join(f"{uuid}, {pid}\n" for uuid, pid in users))
        temporary.replace(self._folder / "users")
