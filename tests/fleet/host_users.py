"""Users of one host who run studydb. Each has a separate home, and may have a separate uid."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fleet.workers import TRAINABLES, Fleet, WorkerProcess

NOBODY = 65534


class HostUser:
    """
    A user with a separate home.

    Args:
        uid: The user's uid; None for the uid of this process. Processes of another uid may read all
            files, because they must read this checkout. They may write only where their user may.
        folder: A folder that every user may write to; the user's home is made in it.
    """

    def __init__(self, folder: Path, uid: int | None = None) -> None:
        self._uid, self.folder = uid, folder / f"of-{uid or 'own'}"
        self.folder.mkdir()
        if uid is not None:
            os.chown(self.folder, uid, uid)

    def run(self, *arguments: str, environment: Mapping[str, str]) -> None:
        """Run a `studydb` command as this user, and wait for its end."""
        subprocess.run(
            self._command(arguments),
            cwd=TRAINABLES,
            env={**os.environ, **environment, "HOME": str(self.folder)},
            check=True,
        )

    def start(self, fleet: Fleet, *arguments: str, environment: Mapping[str, str]) -> WorkerProcess:
        """Start a worker of a fleet."""
        return fleet.launch(
            self._command(arguments), environment={**environment, "HOME": str(self.folder)}
        )

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        command = [sys.executable, "-m", "studydb", *arguments]
        if self._uid is None:
            return command
        groups = [f"--reuid={self._uid}", f"--regid={self._uid}", "--clear-groups"]
        return ["setpriv", *groups, *(f"--{kind}-caps=+dac_read_search" for kind in CAPS), *command]


CAPS = ("inh", "ambient")


def other_uid() -> int | None:
    """Return another user's uid; None if this process cannot start processes of other users."""
    return NOBODY if os.getuid() == 0 and shutil.which("setpriv") else None
