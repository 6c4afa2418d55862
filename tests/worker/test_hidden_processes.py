"""`is_alive` is true for a process that /proc or ps does not show, unless its end is certain."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

import studydb
from studydb import processes
from studydb.domain.records import Process
from studydb.processes import is_alive, process_record, start_of, this_process

OTHER_USER = 65534
"""A user from whom /proc hides the processes of root."""

_HIDE = (
    'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid "$0" --regid "$0"'
    ' --clear-groups "$@"'
)

_ASK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from studydb.processes import is_alive
from studydb.domain.records import Process
found = [is_alive(Process(**one)) for one in json.loads(sys.argv[2])]
print(json.dumps([os.path.exists(f"/proc/{os.getppid()}"), *found]))
"""


@pytest.fixture
def living() -> Iterator[Process]:
    with subprocess.Popen(["sleep", "600"]) as popen:
        yield process_record(popen.pid, start_of(popen.pid) or 0)
        popen.kill()


@pytest.fixture
def dead() -> Process:
    with subprocess.Popen(["sleep", "600"]) as popen:
        record = process_record(popen.pid, start_of(popen.pid) or 0)
        popen.kill()
    return record


def fail_reads_of_proc(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Make each read of a /proc/PID/stat fail with the errno `code`."""

    def read(pid: int) -> list[bytes]:
        raise OSError(code, os.strerror(code), f"/proc/{pid}/stat")

    monkeypatch.setattr(processes, "_stat_fields", read)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a /proc that hides processes")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has hidepid")
def test_process_without_a_visible_proc_entry_is_alive_until_it_ends(living, dead):
    asked = json.dumps([structs.asdict(one) for one in (living, dead)])
    folder = str(Path(studydb.__file__).parents[1])

    hidden = ["unshare", "--mount", "sh", "-c", _HIDE, str(OTHER_USER)]
    answer = subprocess.run(
        [*hidden, sys.executable, "-c", _ASK, folder, asked],
        capture_output=True,
        check=False,
        cwd="/",
        text=True,
    )

    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [False, True, False]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EPERM, errno.EACCES, errno.EMFILE])
def test_process_whose_proc_entry_cannot_be_read_is_alive_until_it_ends(
    monkeypatch, living, dead, code
):
    fail_reads_of_proc(monkeypatch, code)

    assert is_alive(living)
    assert not is_alive(dead)


def test_process_is_alive_if_signals_to_it_are_forbidden(monkeypatch):
    hidden = structs.replace(this_process(), pid=2**22 - 1)

    def kill(_pid: int, number: int) -> None:
        assert number == 0
        raise PermissionError(errno.EPERM, "Operation not permitted")

    fail_reads_of_proc(monkeypatch, errno.ENOENT)
    monkeypatch.setattr(processes.os, "kill", kill)

    assert is_alive(hidden)


def test_process_with_unknown_start_time_is_alive_while_its_pid_exists(living, dead):
    assert is_alive(structs.replace(living, started=0))
    assert not is_alive(structs.replace(dead, started=0))


def test_running_process_is_alive_on_a_host_without_proc_and_ps(monkeypatch, living, dead):
    monkeypatch.setattr(processes, "_has_proc", lambda: False)
    monkeypatch.setattr(processes, "_output_of", lambda *_: "")

    assert is_alive(living)
    assert not is_alive(dead)
