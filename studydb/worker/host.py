"""Errors of this host, such as a full disk, with advice; the number of its OOM kills."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from studydb.domain.errors import HostError

START_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""The pauses between tries to start the process of a trial."""

_SCRATCH = "Free space in its temporary directory, or name another directory in TMPDIR."
_CURES: dict[int | None, str] = {
    errno.EAGAIN: "Its limit of processes is reached: raise it (`ulimit -u`, pids.max of the "
    "cgroup), or start fewer workers and slots.",
    errno.ENOMEM: "It is out of memory: start fewer workers and slots.",
    errno.EMFILE: "The process's limit of open files is reached: raise it (`ulimit -n`), or give "
    "the worker fewer slots.",
    errno.ENFILE: "The system's limit of open files is reached: raise fs.file-max.",
    errno.ENOSPC: _SCRATCH,
    errno.EDQUOT: _SCRATCH,
    errno.ENOENT: _SCRATCH,
}
_NO_THREAD = "can't start new thread"


def is_host_fault(error: BaseException) -> bool:
    """Whether this host caused an error: an OSError, or Python's refusal to start a thread."""
    return isinstance(error, OSError) or str(error) == _NO_THREAD


def host_error(what: str, error: BaseException) -> HostError:
    """
    Make the error that says what this host cannot do, why, and what to do about it.

    Args:
        what: An infinitive, such as "start a trial".
        error: An error for which `is_host_fault` is true.
    """
    code = error.errno if isinstance(error, OSError) else errno.EAGAIN
    path = getattr(error, "filename", None)
    fact = str(error) if path or not code else os.strerror(code)
    return HostError(f"This host cannot {what}: {fact.rstrip('.')}. {_CURES.get(code, '')}".strip())


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Count the processes that this host's kernel killed when out of memory; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in vmstat.read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0
