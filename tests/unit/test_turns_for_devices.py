"""A worker that has used a device for 60 s lets waiting workers go first for the next 5 s."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.fake_nvidia_smi import UUIDS
from harness.nodes import Clock

from studydb.devices import Devices
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
from studydb.devices.lock_files import LockFile
from studydb.devices.sharing import FIRST_S, LONG_S

ROOT = Path(__file__).parents[2]
A, B, *_ = UUIDS


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def worker(tmp_path, clock):
    """A function that makes the `Devices` of one more worker of this host."""

    def make(*uuids):
        devices = tuple(Device(uuid, uuid, uuid) for uuid in uuids or (A,))
        return Devices(Offer(CUDA, devices), tmp_path, clock_s=clock)

    return make


def run_trial(devices, clock, seconds):
    """Let a trial have a device for some seconds."""
    grant = devices.take(1)
    clock.now_s += seconds
    grant.release()


def test_worker_that_has_had_a_device_for_long_lets_a_waiting_worker_go_first(worker, clock):
    mine, other = worker(), worker()
    grant = mine.take(1)
    clock.now_s += LONG_S
    other.show_wait(is_waiting=True)

    grant.release()

    assert mine.free_parts() == (0,)
    assert other.free_parts() == (1,)
    run_trial(other, clock, 0.1)
    assert mine.free_parts() == (1,)  # `other` no longer waits


def test_short_trials_that_follow_one_another_count_together(worker, clock):
    mine, other = worker(), worker()
    other.show_wait(is_waiting=True)

    for _ in range(9):
        run_trial(mine, clock, LONG_S / 10)
        assert mine.free_parts() == (1,)
    run_trial(mine, clock, LONG_S / 10)

    assert mine.free_parts() == (0,)


def test_time_with_a_device_counts_from_zero_after_a_while_without_a_trial(worker, clock):
    mine, other = worker(), worker()
    other.show_wait(is_waiting=True)
    run_trial(mine, clock, LONG_S - 1)
    clock.now_s += FIRST_S + 1

    run_trial(mine, clock, 2)

    assert mine.free_parts() == (1,)


def test_worker_keeps_a_device_for_which_no_other_worker_waits(worker, clock):
    mine, other = worker(), worker()
    other.show_wait(is_waiting=True)
    other.show_wait(is_waiting=False)

    run_trial(mine, clock, LONG_S)

    assert mine.free_parts() == (1,)


def test_worker_does_not_wait_for_itself(worker, clock):
    """One slot of the worker has the first device, and another slot waits for both devices."""
    mine = worker(A, B)
    grant = mine.take(1)
    mine.show_wait(is_waiting=True)
    clock.now_s += LONG_S

    grant.release()

    assert mine.free_parts() == (1, 1)


def test_waiting_worker_that_takes_nothing_delays_others_by_5_seconds_only(worker, clock):
    """A waiting worker takes nothing if it is suspended or also needs a device that is not free."""
    mine, other = worker(), worker()
    other.show_wait(is_waiting=True)
    run_trial(mine, clock, LONG_S)
    assert mine.free_parts() == (0,)

    clock.now_s += FIRST_S

    assert mine.free_parts() == (1,)
    run_trial(mine, clock, LONG_S / 2)
    assert mine.free_parts() == (1,)


def test_trial_that_is_already_claimed_gets_a_device_although_another_worker_should_go_first(
    worker, clock
):
    mine, other = worker(), worker()
    other.show_wait(is_waiting=True)
    run_trial(mine, clock, LONG_S)

    assert mine.take(1) is not None


def test_worker_that_starts_a_trial_without_devices_no_longer_waits(worker, clock):
    mine, other = worker(A), worker(A, B)
    other.show_wait(is_waiting=True)

    assert other.take(0) is not None

    run_trial(mine, clock, LONG_S)
    assert mine.free_parts() == (1,)


def test_wait_for_a_device_ends_when_the_waiting_process_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from studydb.devices.lock_files import "
        "LockFile; file = LockFile(Path(sys.argv[1]), 'a'); file.show_wait(); print(flush=True); "
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    mine = LockFile(tmp_path, "a")
    assert mine.is_awaited()
    assert mine.free == 1_000_000  # the whole device; a wait locks another byte of the file

    process.kill()
    process.communicate()

    assert not mine.is_awaited()
