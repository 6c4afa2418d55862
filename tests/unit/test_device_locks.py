"""Locks of devices: which trials exclude each other; lock files, and their directory."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from harness.arrange import run_together
from harness.fake_nvidia_smi import INSTANCES, UUIDS
from harness.refusal import check_refused

from studydb.devices import Devices, lock_files
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
from studydb.devices.lock_files import LockFile, lock_directory, turn
from studydb.domain.errors import HostError, UsageError

ROOT = Path(__file__).parents[2]
A, B, C, D = UUIDS
NOBODY = 65534


@pytest.fixture
def worker(tmp_path):
    """A function; each call makes the `Devices` of one more worker of this host."""

    def make(*uuids, **cards):
        devices = [Device(uuid, uuid, uuid) for uuid in uuids]
        devices += [Device(part, part, card) for card, parts in cards.items() for part in parts]
        return Devices(Offer(CUDA, tuple(devices)), tmp_path)

    return make


def test_device_is_given_to_one_trial_until_it_is_released(worker):
    mine, other = worker(A, B), worker(B, A)
    grant = mine.take(1)

    assert grant.names == (A,)
    assert sum(other.free_parts()) == 1
    assert other.take(1).names == (B,)
    assert mine.take(1) is None
    assert sum(other.free_parts()) == sum(mine.free_parts()) == 0

    assert grant.release() is None
    assert grant.release() is None
    assert other.take(1).names == (A,)


def test_trial_gets_all_of_its_devices_or_none(worker):
    one, other = worker(*UUIDS), worker(*UUIDS)
    held = other.take(1)

    assert one.take(4) is None
    assert sum(one.free_parts()) == 3
    assert one.take(3).names == (B, C, D)
    held.release()
    assert other.take(2) is None
    assert other.take(1) is not None


@pytest.mark.parametrize(
    "parts",
    [[0.5, 0.5], [0.25] * 4, [0.5, 0.25, 0.25], [0.333333] * 3, [0.9, 0.1], [0.6, 0.4], [1]],
)
def test_parts_of_a_device_fill_it_exactly(worker, parts):
    grants = [worker(A).take(part) for part in parts]

    assert None not in grants
    assert sum(worker(A).free_parts()) < 0.001
    for part in (0.01, 0.5, 1):
        assert worker(A).take(part) is None


@pytest.mark.parametrize(
    ("held", "refused", "granted"),
    [([0.5], [1, 0.6], [0.5, 0.25]), ([0.25, 0.25], [1, 0.51], [0.5]), ([1], [0.1, 1], [])],
)
def test_parts_and_whole_devices_exclude_each_other(worker, held, refused, granted):
    kept = [worker(A).take(part) for part in held]

    assert None not in kept
    for part in refused:
        assert worker(A).take(part) is None
    for part in granted:
        grant = worker(A).take(part)
        assert grant is not None
        grant.release()


def test_part_can_consist_of_the_ranges_of_several_released_parts(worker):
    parts = [worker(A).take(0.25) for _ in range(4)]
    parts[0].release()
    parts[2].release()

    grant = worker(A).take(0.5)

    assert grant is not None
    assert sum(worker(A).free_parts()) == 0


def test_part_comes_from_the_fullest_device_so_that_others_stay_whole(worker):
    first, second, third = (worker(A, B).take(part) for part in (0.5, 0.25, 0.5))

    assert (first.names, second.names, third.names) == ((A,), (A,), (B,))
    first.release()
    assert worker(A, B).take(0.5).names == (B,)
    assert worker(A, B).take(1) is None


def test_descriptors_are_closed_if_some_cannot_be_copied(worker, monkeypatch):
    mine, copies, dup = worker(A, B), [], os.dup

    def refuse_the_second(descriptor):
        if copies:
            raise OSError(errno.EMFILE, "Too many open files")
        copies.append(dup(descriptor))
        return copies[0]

    monkeypatch.setattr(os, "dup", refuse_the_second)
    check_refused(["cannot keep the locks", "ulimit -n"], mine.take, 2, error=HostError)
    monkeypatch.undo()

    assert worker(A, B).take(2) is not None


def test_card_and_its_mig_instances_exclude_each_other(worker):
    parts = worker(**{A: INSTANCES})
    first = parts.take(1)

    assert worker(A).take(1) is None
    assert worker(A).take(0.5) is None
    assert worker(**{A: INSTANCES}).take(2) is None
    second = worker(**{A: INSTANCES}).take(1)
    assert {first.names, second.names} == {(INSTANCES[0],), (INSTANCES[1],)}

    first.release()
    second.release()
    assert worker(A).take(0.5) is not None
    assert parts.take(1) is None
    assert sum(parts.free_parts()) == 0


@pytest.mark.parametrize("gpus", [1.5, -1, 0.0000001, float("nan")])
def test_number_of_gpus_that_is_negative_tiny_nan_or_above_1_and_not_whole_is_refused(worker, gpus):
    with pytest.raises(ValueError, match=r"whole number|NaN"):
        worker(A, B).take(gpus)


def test_trial_without_devices_sees_none_of_its_workers_devices(worker):
    grant = worker(A).take(0)

    assert grant.environment() == {"CUDA_VISIBLE_DEVICES": ""}
    assert (grant.names, grant.descriptors) == ((), ())


def test_take_fails_while_another_worker_has_the_turn_and_succeeds_afterwards(
    worker, tmp_path, monkeypatch
):
    monkeypatch.setattr(lock_files, "TURN_S", 0.05)
    with turn(tmp_path) as has_turn:
        assert has_turn
        assert worker(A).take(1) is None

    assert worker(A).take(1) is not None


def test_two_workers_take_the_same_two_devices_at_once_and_one_gets_both(worker, monkeypatch):
    """Without turns each worker would lock one device, and neither would get two."""
    both = threading.Barrier(2, timeout=20.0)
    lock, try_turn = LockFile.lock, LockFile.try_turn

    def wait_for_the_other():
        with suppress(threading.BrokenBarrierError):
            both.wait()

    def lock_together(file, size):
        wait_for_the_other()
        is_locked = lock(file, size)
        wait_for_the_other()  # no worker gives its device back before both have tried
        return is_locked

    def try_turn_and_let_the_other_go_on(file):
        has_turn = try_turn(file)
        if not has_turn:
            both.abort()
        return has_turn

    monkeypatch.setattr(LockFile, "lock", lock_together)
    monkeypatch.setattr(LockFile, "try_turn", try_turn_and_let_the_other_go_on)
    one, other = worker(A, B), worker(B, A)

    grants = run_together([lambda: one.take(2), lambda: other.take(2)])

    assert sorted(grant is None for grant in grants) == [False, True]


# lock files, and their directory


def mode_of(path):
    return path.stat().st_mode & 0o7777


def test_lock_file_is_open_to_all_users_whatever_the_umask(worker, tmp_path):
    mask = os.umask(0o077)
    try:
        worker(A).take(1)
    finally:
        os.umask(mask)

    files = list(tmp_path.iterdir())
    assert {mode_of(file) for file in files} == {0o666}
    assert f"studydb-gpu-{A}.lock" in {file.name for file in files}


TAKE = """
import os, sys
from pathlib import Path
from studydb.devices import Devices
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
os.setgid({user}); os.setuid({user})
devices = Devices(Offer(CUDA, (Device("{uuid}", "{uuid}", "{uuid}"),)), Path(sys.argv[1]))
print(devices.take(1) is not None)
"""


def taken_by(user, directory):
    code = TAKE.format(user=user, uuid=A)
    return subprocess.check_output([sys.executable, "-c", code, directory], cwd=ROOT, text=True)


@pytest.fixture
def shared():
    """A directory in which all users may make files, like /run/lock and unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("first", ["root", "nobody"])
def test_workers_of_two_users_exclude_each_other(shared, first):
    devices = Devices(Offer(CUDA, (Device(A, A, A),)), shared)
    if first == "nobody":
        assert taken_by(NOBODY, shared) == "True\n"  # NOBODY now owns the file
        assert (shared / f"studydb-gpu-{A}.lock").stat().st_uid == NOBODY

    grant = devices.take(1)
    assert grant is not None
    assert taken_by(NOBODY, shared) == "False\n"
    grant.release()
    assert taken_by(NOBODY, shared) == "True\n"


def test_lock_file_that_is_a_link_is_not_followed(worker, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("data")
    (tmp_path / f"studydb-gpu-{A}.lock").symlink_to(precious)

    check_refused([f"studydb-gpu-{A}.lock", "Remove it"], worker(A).take, 1, error=HostError)

    assert precious.read_text() == "data"
    assert mode_of(precious) != 0o666


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_lock_file_that_is_no_regular_file_is_refused_without_a_wait(worker, tmp_path, make):
    make(tmp_path / f"studydb-gpu-{A}.lock")

    check_refused(["cannot be used"], worker(A).take, 1, error=HostError)


def test_lock_file_that_was_removed_while_it_was_opened_is_made_anew(worker, tmp_path, monkeypatch):
    path, real, opened = tmp_path / f"studydb-gpu-{A}.lock", os.open, []

    def remove_once(file, *arguments):
        descriptor = real(file, *arguments)
        if file == path and not opened:
            opened.append(file)
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", remove_once)
    grant = worker(A).take(1)

    assert opened
    assert path.stat().st_ino == os.fstat(grant.descriptors[0]).st_ino
    assert worker(A).take(1) is None


def test_lock_directory_that_is_missing_or_lets_users_remove_files_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    check_refused(
        ["chmod +t"], lock_directory, {"STUDYDB_LOCK_DIR": str(tmp_path)}, error=UsageError
    )
    tmp_path.chmod(0o1777)
    assert lock_directory({"STUDYDB_LOCK_DIR": str(tmp_path)}) == tmp_path
    missing = {"STUDYDB_LOCK_DIR": str(tmp_path / "missing")}
    check_refused(["STUDYDB_LOCK_DIR", "missing"], lock_directory, missing, error=UsageError)


def test_directory_of_the_locks_is_the_first_in_which_every_user_may_make_files(
    tmp_path, monkeypatch
):
    folders = [tmp_path / name for name in ("of-root", "shared")]
    for folder, mode in zip(folders, (0o755, 0o1777), strict=True):
        folder.mkdir()
        folder.chmod(mode)
    monkeypatch.setattr(lock_files, "_DIRECTORIES", ("/missing", *map(str, folders)))

    assert lock_directory({"TMPDIR": str(folders[0])}) == folders[1]

    folders[1].chmod(0o755)
    check_refused(["1777", "STUDYDB_LOCK_DIR"], lock_directory, {}, error=HostError)


def test_host_or_file_system_without_the_needed_locks_is_refused_with_the_cure(
    worker, tmp_path, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    check_refused(["cannot lock", "STUDYDB_LOCK_DIR"], worker(A).free_parts, error=HostError)

    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    check_refused(["Linux only", "--gpus none"], lock_directory, {}, error=HostError)


def test_name_of_a_lock_stays_in_its_directory(tmp_path):
    file = LockFile(tmp_path, "MIG-GPU-x/1/../../../0")

    assert file.path.parent == tmp_path
    file.close()
