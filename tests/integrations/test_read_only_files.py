"""
Commands that read need no right to write to the SQLite file or to its folder.

Reads are refused if the `-wal` file holds changes and SQLite cannot make a missing `-shm` file.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from fleet.host_users import NOBODY
from harness import arrange
from harness.commands import reading_commands

from studydb.db import connect, sqlite_file
from studydb.domain.errors import StorageBusy
from studydb.study import load_study

WITHOUT_CAPABILITIES = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
if os.geteuid() == 0:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A script that runs Python without the capabilities by which root ignores file permissions."""

COMMANDS = """
import json, sys
from studydb.__main__ import main
code = int(sys.argv[1])
for arguments in json.loads(sys.argv[2]):
    try:
        main(arguments)
    except SystemExit as ended:
        if (ended.code or 0) != code:
            sys.exit(f"{arguments} exits with {ended.code}, not with {code}")
sys.exit(code)
"""
"""
A script that runs several studydb commands in one process. Its first argument is the exit code with
which each command must end. Its second argument is a JSON list of the commands, each a list of
words.
"""

READS = [
    *reading_commands("digits"),
    ("db", "check"),
    ("query", "SELECT number FROM v_trial"),
]

WRITES = [
    ("pause", "digits"),
    ("enqueue", "digits", "lr=0.5"),
    ("views", "digits"),
    ("rename", "digits", "other"),
    ("delete", "digits", "--yes"),
]


@pytest.fixture
def archive(sqlite_url, tmp_path):
    """A folder with the SQLite file of a study; no process has the file open."""
    database = connect(sqlite_url)
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study).take().report(0.5)
    database.close()
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "studies.db").write_bytes(database.path.read_bytes())
    yield folder
    folder.chmod(0o755)


def make_read_only(folder, *, mode=0o555):
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(mode)


def give_to_another_user(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, NOBODY, -1)


def start_python(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_CAPABILITIES, *arguments],
        env=os.environ | {"STUDYDB_STORAGE": f"sqlite:///{folder / 'studies.db'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def studydb(folder, *commands, code=0):
    """Run commands that must all end with the exit code `code`; return their lines on stderr."""
    process = start_python(folder, "-c", COMMANDS, str(code), json.dumps(commands))
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return err.splitlines()


def leave_wal(folder):
    """Leave a change of the study only in the `-wal` file, and delete the `-shm` file."""
    script = (
        "import os, signal, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute(\"UPDATE study SET name = 'changed'\")\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = str(folder / "studies.db")
    ended = subprocess.run([sys.executable, "-c", script, path], check=False)
    assert ended.returncode == -signal.SIGKILL
    (folder / "studies.db-shm").unlink()


@pytest.mark.parametrize("mode", [0o555, 0o755])
def test_reading_commands_leave_no_file_beside_a_read_only_file(archive, mode):
    """The file's owner could not use a `-shm` file of another user, and could not write any more."""
    make_read_only(archive, mode=mode)
    if mode == 0o755:
        give_to_another_user(archive / "studies.db")

    errors = studydb(archive, *READS)

    assert errors == []
    assert os.listdir(archive) == ["studies.db"]  # noqa: PTH208  names, not paths


@pytest.mark.slow
def test_writing_commands_are_refused_in_a_read_only_folder(archive):
    make_read_only(archive)

    errors = studydb(archive, *WRITES, code=1)

    assert len(errors) == len(WRITES)
    for error in errors:
        assert "cannot be written: check the rights of file and folder." in error


@pytest.mark.slow
def test_read_only_file_in_a_writable_folder_can_be_read(archive):
    (archive / "studies.db").chmod(0o444)

    assert studydb(archive, ("status", "digits")) == []


@pytest.mark.slow
def test_status_in_a_read_only_folder_shows_the_changes_of_a_connected_writer(archive):
    with closing(sqlite3.connect(archive / "studies.db", isolation_level=None)) as writer:
        writer.execute("UPDATE study SET name = 'changed'")
        make_read_only(archive)

        assert studydb(archive, ("status", "changed")) == []


@pytest.mark.slow
def test_reading_is_refused_while_a_wal_file_holds_changes_that_cannot_be_read(archive, tmp_path):
    leave_wal(archive)
    make_read_only(archive)

    errors = studydb(archive, ("status",), ("query", "SELECT 1"), code=1)

    assert len(errors) == 2
    for error in errors:
        assert "copy both files, studies.db and studies.db-wal, to a folder of yours" in error
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("studies.db", "studies.db-wal"):
        shutil.copyfile(archive / name, mine / name)
    assert studydb(mine, ("status", "changed")) == []


@pytest.mark.slow
def test_open_handle_sees_later_changes_of_another_process(archive):
    make_read_only(archive)
    script = (
        "import os, sys, studydb\n"
        "study = studydb.load_study('digits')\n"
        "print(len(study.trials), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(len(study.trials), flush=True)\n"
    )
    reader = start_python(archive, "-c", script)
    assert reader.stdout.readline() == "1\n"
    archive.chmod(0o755)
    (archive / "studies.db").chmod(0o644)
    writer = load_study("digits", storage=f"sqlite:///{archive / 'studies.db'}")
    writer.enqueue({"lr": 0.5})
    make_read_only(archive)

    seen, _ = reader.communicate("\n", timeout=60)

    writer.close()
    assert seen == "2\n"


def test_read_raises_storage_busy_if_another_process_writes_during_the_read(archive, monkeypatch):
    path = archive / "studies.db"
    monkeypatch.setattr(sqlite_file, "_may_only_read", lambda _: True)
    original, refusal = (
        sqlite_file._opened,
        sqlite3.OperationalError("unable to open database file"),
    )
    refusal.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN

    def refuse(path, how, **options):
        if "immutable" in how:
            return original(path, how, **options)
        raise refusal

    monkeypatch.setattr(sqlite_file, "_opened", refuse)
    reader = connect(f"sqlite:///{path}")

    def read_while_another_writes():
        with reader.begin(write=False) as txn:
            txn.raw("SELECT count(*) FROM trial")
            with closing(sqlite3.connect(path, isolation_level=None)) as writer:
                writer.execute("UPDATE study SET name = 'changed'")

    with pytest.raises(StorageBusy, match="another process is writing"):
        read_while_another_writes()
    assert arrange.rows(reader, "SELECT name FROM study") == [("changed",)]
    reader.close()
