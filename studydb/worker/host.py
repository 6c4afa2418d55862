"""Errors of this host, such as a full disk, in words for people: fact, cause, cure."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from studydb.domain.errors import HostError

START_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses before each further try to start a trial."""

_SCRATCH = "Make room in its temporary directory, or name another in TMPDIR."
_CURES: dict[int | None, str] = {
    errno.EAGAIN: "It has as many processes as it may: raise the limit (`ulimit -u`, pids.max of "
    "the cgroup), or start fewer workers and slots.",
    errno.ENOMEM: "It is out of memory: start fewer workers and slots.",
    errno.EMFILE: "It has as many files open as it may: raise the limit (`ulimit -n`), or give it "
    "fewer slots.",
    errno.ENFILE: "The system has as many files open as it may: raise fs.file-max.",
    errno.ENOSPC: _SCRATCH,
    errno.EDQUOT: _SCRATCH,
    errno.ENOENT: _SCRATCH,
}
_NO_THREAD = "can't start new thread"


def lacks(error: BaseException) -> bool:
    """Whether an error is the host's and not a bug."""
    return isinstance(error, OSError) or str(error) == _NO_THREAD


def cannot(what: str, error: BaseException) -> HostError:
    """
    Say what this host cannot do, why, and what to do about it.

    Args:
        what: An infinitive: "start a trial".
        error: For which `lacks` is true.
    """
    code = error.errno if isinstance(error, OSError) else errno.EAGAIN
    path = getattr(error, "filename", None)
    fact = str(error) if path or not code else os.strerror(code)
    return HostError(f"This host cannot {what}: {fact.rstrip('.')}. {_CURES.get(code, '')}".strip())


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes of this host the kernel has killed because memory ran out; or 0."""
    with suppress(OSError, ValueError):
        for line in vmstat.read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0
