"""Several users' processes take devices for short trials, while a test kills these processes."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]

_PAUSES_S = 0.01
_SHARES = (1, 2, 0.5, 0.25)


class DeviceUser:
    """
    A process that runs one trial after another: it takes devices, forks, and waits for the fork.

    The fork stands for the trial: it inherits the locks, and lives on if the process is killed.
    Each device has a file, its witness. The fork locks the witnesses of its devices with `flock`
    (shared, if the trial has a part of a device). If another trial holds a conflicting lock, the
    fork writes a line to `violations`.

    Args:
        folder: Contains the witnesses, `violations`, and `trials` with a line for each trial.
        user: The uid of the process.
        environment: The variables by which the process finds the devices.
    """

    def __init__(self, folder: Path, user: int, environment: Mapping[str, str]) -> None:
        self._folder, self._user, self._environment = folder, user, dict(environment)
        self._start()

    def _start(self) -> None:
        call = "import sys; sys.path.insert(0, 'tests'); from harness import device_users as d; "
        self._popen = subprocess.Popen(
            [sys.executable, "-c", f"{call}d.serve({str(self._folder)!r}, {self._user})"],
            cwd=ROOT,
            env={**os.environ, **self._environment},
        )

    def replace(self) -> None:
        """Kill the process, but not its trial, and start another process."""
        self.end()
        self._start()

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()


def make_witnesses(folder: Path, names: Sequence[str]) -> None:
    """Make the files that `DeviceUser` needs, open to all users."""
    for name in [*names, "trials", "violations"]:
        (folder / name).touch()
        (folder / name).chmod(0o666)


def serve(folder: str, user: int) -> None:
    """Take devices for trials until this process is killed."""
    # Imported before `setuid`, because the user may have no right to read the package.
    from studydb.devices import Devices  # noqa: PLC0415

    if user != os.getuid():
        os.setgid(user)
        os.setuid(user)
    devices = Devices.of("auto")
    while True:
        gpus = random.choice(_SHARES)
        grant = devices.take(gpus)
        if grant is None:
            time.sleep(_PAUSES_S)
            continue
        if (pid := os.fork()) == 0:
            with suppress(BaseException):
                _train(Path(folder), grant.names, shares=gpus < 1)
            os._exit(0)
        os.waitpid(pid, 0)
        grant.release()


def _train(folder: Path, names: Sequence[str], *, shares: bool) -> None:
    os.setsid()
    signal.alarm(30)
    kind = fcntl.LOCK_SH if shares else fcntl.LOCK_EX
    for name in names:
        witness = os.open(folder / name, os.O_RDWR)
        try:
            fcntl.flock(witness, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            _note(folder / "violations", f"{name} is in use twice")
    time.sleep(random.uniform(0, 3 * _PAUSES_S))
    _note(folder / "trials", " ".join(names))


def _note(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
