"""Temporary directories of a living process stay; those of a killed process are removed."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from studydb import temporary
from studydb.temporary import PREFIX, TemporaryDirectory, remove_abandoned

HOLD = """
import sys
from studydb.temporary import TemporaryDirectory

with TemporaryDirectory() as path:
    open(f"{path}/checkpoint", "w").close()
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(folder):
    """A process that has a directory; it ends when its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    with process:
        yield process
        process.kill()


def test_directory_is_removed_at_the_end_of_its_block(folder):
    with TemporaryDirectory() as path:
        Path(path, "file").touch()
        assert Path(path).parent == folder

    assert list(folder.iterdir()) == []


def test_directory_of_a_killed_process_is_removed_and_that_of_a_living_process_stays(holder):
    path = Path(holder.stdout.readline().strip())

    remove_abandoned()

    assert (path / "checkpoint").exists()

    holder.kill()
    holder.wait()
    remove_abandoned()

    assert not path.exists()


def test_directory_of_this_process_stays():
    with TemporaryDirectory() as path:
        remove_abandoned()
        assert Path(path).exists()


@pytest.mark.parametrize("name", ["studydb-tmp-other", f"{PREFIX}link", f"{PREFIX}file"])
def test_other_entries_with_similar_names_stay(folder, name):
    target = folder / "target"
    target.mkdir()
    if name.endswith("link"):
        (folder / name).symlink_to(target)
    elif name.endswith("file"):
        (folder / name).touch()
    else:
        (folder / name).mkdir()

    remove_abandoned()

    assert (folder / name).exists()
    assert target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_directory_of_another_user_stays(folder):
    path = folder / f"{PREFIX}other"
    path.mkdir()
    os.chown(path, 65534, 65534)

    remove_abandoned()

    assert path.exists()


def test_directory_that_is_removed_before_it_is_locked_is_made_again(monkeypatch):
    lock, removed = temporary._can_lock, []

    def remove_first(descriptor):
        if not removed:
            removed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            removed[0].rmdir()
        return lock(descriptor)

    monkeypatch.setattr(temporary, "_can_lock", remove_first)

    with TemporaryDirectory() as path:
        assert path != str(removed[0])
        assert Path(path).is_dir()


def test_directories_can_be_made_without_locks_and_are_not_removed_as_abandoned(monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with TemporaryDirectory() as path:
        remove_abandoned()
        assert Path(path).exists()
    assert not Path(path).exists()


def test_second_removal_closes_no_descriptor_of_another_file(folder):
    directory = TemporaryDirectory()
    directory.remove()
    with (folder / "file").open("w") as file:
        directory.remove()
        file.write("still open")
    assert (folder / "file").read_text() == "still open"


def test_directory_with_directories_that_its_user_may_not_change_is_removed(folder):
    """
    User code may leave such directories in the scratch directory of a trial.

    Root may change every directory. If the test runs as root, its child becomes another user.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    folder.chmod(0o777)
    pid = os.fork()
    if pid == 0:
        try:
            os.fchdir(descriptor)
            if os.geteuid() == 0:
                os.setuid(65534)
            with TemporaryDirectory(parent=".") as path:
                below = Path(path, "checkpoint", "data")
                below.mkdir(parents=True)
                (below / "file").touch()
                below.chmod(0o555)
                below.parent.chmod(0o000)
            os._exit(0)
        finally:
            os._exit(1)

    os.close(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(folder.iterdir()) == []
