"""Processes of this host: their identity and environment, signals, forks, limits and names."""

import ctypes
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from studydb.domain.records import Process

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_SET_NAME = 15
_COMMAND_TIMEOUT_S = 5.0
_UNKNOWN_START = 0
_FIRST_PID_NAMESPACE = 0xEFFF_FFFC
"""The inode of the pid namespace in which Linux boots, PROC_PID_INIT_INO."""

IMPORT_STUDYDB = (
    "sys.path.insert(0, sys.argv[1]); import studydb; sys.path.append(sys.path.pop(0)); "
)
"""
Code by which a new process imports studydb. The process's first argument is the folder of this
studydb.

The folder is first on `sys.path` during the import, so that no other installed studydb is imported.
Then it is moved to the end of `sys.path`, so that no file in it hides a module of Python.
"""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which a service manager or terminal asks a worker or a child to save and end."""

SIGNAL_SPREAD_S = 1.0
"""
A stop signal may reach a child twice: from the terminal or service manager, and from its worker.
Both signals, and the signal to the worker itself, arrive within this time of each other.
"""


def this_process() -> "Process":
    """The identity of the calling process."""
    pid = os.getpid()
    return process_record(pid, start_of(pid) or _UNKNOWN_START)


def process_record(pid: int, started: int) -> "Process":
    """The identity of a process in the caller's namespace of pids."""
    # Imported here: a fork server calls `die_with_parent` before it imports further modules.
    from studydb.domain.records import Process  # noqa: PLC0415

    return Process(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        pid=pid,
        started=started,
    )


def is_local(process: "Process") -> bool:
    """Whether a process has the caller's boot ID and pid namespace; only then is its pid valid."""
    return (process.boot_id, process.pid_namespace) == (boot_id(), pid_namespace())


def is_alive(process: "Process") -> bool:
    """
    Whether a process may still run. A zombie has ended.

    Processes of other hosts and containers count as alive, and so do processes that /proc hides
    from this user (hidepid).
    """
    if not is_local(process):
        return True
    try:
        started = _read_start(process.pid)
    except _UnreadableError:
        return exists(process.pid)
    return started is not None and process.started in (started, _UNKNOWN_START)


def start_of(pid: int) -> int | None:
    """
    When a process started, in clock ticks since boot; without /proc, in seconds since 1970.

    Returns:
        None for a zombie, a hidden process, or a process that does not exist.
    """
    try:
        return _read_start(pid)
    except _UnreadableError:
        return None


class _UnreadableError(Exception):
    """Nothing can be read about a process: it has ended, or it is hidden."""


def _read_start(pid: int) -> int | None:
    if not _has_proc():
        return _start_by_ps(pid)
    try:
        fields = _stat_fields(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError) as cause:
        raise _UnreadableError from cause


def exists(pid: int) -> bool:
    """Whether a process has this pid, also if /proc hides the process from this user (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # the process exists, and belongs to another user
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def children_of(pid: int) -> list[int]:
    """The pids of a process's children; empty without /proc."""
    found = []
    for each in _pids():
        with suppress(OSError, IndexError):
            if int(_stat_fields(each)[1]) == pid:
                found.append(each)
    return found


def pids_with_environment(entry: bytes) -> list[int]:
    """The pids of processes that started with this NAME=value entry; empty without /proc."""
    return [pid for pid in _pids() if entry in environment_of(pid)]


def environments_with(name: str) -> list[tuple[int, dict[str, str]]]:
    """The pids and environments of processes that started with this variable; [] without /proc."""
    found = [(pid, dict(_variables_of(pid))) for pid in _pids()]
    return [(pid, environment) for pid, environment in found if name in environment]


def _variables_of(pid: int) -> Iterator[tuple[str, str]]:
    for entry in environment_of(pid):
        name, _, value = entry.decode(errors="replace").partition("=")
        yield name, value


def _pids() -> list[int]:
    if not _has_proc():
        return []
    names = os.listdir("/proc")  # noqa: PTH208  names, not paths, of thousands of entries
    return [int(name) for name in names if name.isdigit()]


def environment_of(pid: int) -> list[bytes]:
    """The NAME=value entries that a process started with; empty if unreadable."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name, which itself may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def session_of(pid: int) -> int | None:
    """The session of a process; None if the process does not exist or cannot be read."""
    try:
        return int(_stat_fields(pid)[3])
    except (OSError, IndexError, ValueError):
        return None


def has_host_pids() -> bool:
    """Whether the pids that this process sees are the host's, which device drivers report."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def kill_group(pid: int) -> None:
    """Kill the group that a process leads, and the process itself if it leads no group yet."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def reap(*, leaders: Container[int]) -> tuple[int, int] | None:
    """
    Reap one child that has ended; if its pid is one of `leaders`, kill its process group.

    If the system has waitid, the group is killed before the child is reaped. The child keeps its
    pid until it is reaped, so the signal reaches no other process.

    Returns:
        The child's pid, and its exit code or the negative number of the signal that ended it; None
        when no child has ended.
    """
    try:
        if hasattr(os, "waitid"):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            if ended.si_pid in leaders:
                kill_group(ended.si_pid)
            pid, status = os.waitpid(ended.si_pid, 0)
        else:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return None
            if pid in leaders:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
    except ChildProcessError:
        return None
    return pid, os.waitstatus_to_exitcode(status)


def exit_text(code: int) -> str:
    """Say how a process ended, by its exit code or the negative number of a signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def fork() -> int:
    """
    Fork this process; return the pid of the child, or 0 in the child.

    Python warns if the process has native threads. The warning is hidden, because some libraries,
    such as OpenBLAS, end their threads before a fork. In templates, `child/fork_safety.py` finds
    the threads that are left.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def die_with_parent(number: int, parent_pid: int) -> None:
    """
    Have Linux send signal `number` to this process when its parent dies.

    If the parent is no longer `parent_pid`, the process `parent_pid` has died already, and the
    signal is sent now. On systems other than Linux the caller must notice the parent's death
    itself: the socket to the parent is then closed.
    """
    if sys.platform == "linux":
        _prctl(_SET_PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, on Linux."""
    if sys.platform == "linux":
        _prctl(_SET_CHILD_SUBREAPER, 1)


def limit_memory(size_bytes: int, cgroup: str | None) -> Callable[[], None]:
    """
    Limit the memory of this process and of its later children.

    Returns:
        A function that lifts the limit of this process again, except that of a cgroup. It needs
        hardly any memory, so it can be called after a MemoryError.

    Args:
        cgroup: The folder of a cgroup with this limit, for all of these processes together; None
            to limit each process separately.

    Raises:
        OSError: The cgroup cannot be entered.
    """
    if cgroup is not None:
        (Path(cgroup) / "cgroup.procs").write_text("0", encoding="ascii")
        return _do_nothing
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return functools.partial(resource.setrlimit, resource.RLIMIT_DATA, (hard, hard))


def _do_nothing() -> None:
    pass


def name_process(name: str) -> None:
    """Set this process's name in `ps` and `top`, on Linux; only its main thread may call this."""
    if sys.platform == "linux":
        _libc().prctl(_SET_NAME, ctypes.c_char_p(os.fsencode(name)), 0, 0, 0)


def process_name() -> str:
    """This process's name in `ps`; empty if unreadable."""
    try:
        return os.fsdecode(Path("/proc/self/comm").read_bytes().rstrip(b"\n"))
    except OSError:
        return ""


def _prctl(option: int, value: int) -> None:
    _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    """The C library; a template loads it once for all the processes forked from the template."""
    return ctypes.CDLL(None)


@functools.cache
def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


@functools.cache
def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _output_of("sysctl", "-n", "kern.bootsessionuuid")


@functools.cache
def pid_namespace() -> str:
    """Name the namespace in which pids are valid here; "" if the host does not say it."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  pid:[…] is no path
    except OSError:
        return ""


def _start_by_ps(pid: int) -> int | None:
    started = _output_of("ps", "-o", "state=,lstart=", "-p", str(pid))
    state, _, when = started.partition(" ")
    if not when:
        raise _UnreadableError
    if state.startswith("Z"):
        return None
    return int(time.mktime(time.strptime(when.strip(), "%a %b %d %H:%M:%S %Y")))


def _output_of(*command: str) -> str:
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
