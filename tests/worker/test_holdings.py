"""What an attempt does with its trial's devices and memory limit; the children are scripted."""

import os

import pytest
from harness.arrange import rows
from harness.fake_nvidia_smi import UUIDS
from harness.supervised_slot import (
    COMPLETED,
    GOOD,
    ReusedChild,
    ScriptedChildren,
    failed,
    reported,
    wire,
)
from harness.turns import sqlite_alone

from studydb.child.messages import Began, End, Ended
from studydb.devices import Devices, MemoryLimit
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
from studydb.processes import this_process
from studydb.worker import attempt
from studydb.worker.holdings import NOTHING_HELD, Holdings
from studydb.worker.templates import Templates

storage_url = sqlite_alone

A, B, C, D = UUIDS
KEPT = wire(Ended(End.COMPLETED, kept=True))


@pytest.fixture
def devices(tmp_path):
    return Devices(Offer(CUDA, (Device(A, A, A), Device(B, B, B))), tmp_path)


@pytest.fixture
def hold(monkeypatch):
    """Return a function that takes holdings, makes all attempts hold them, and returns them."""

    def hold(holdings):
        run = attempt.Attempt.run

        def run_with(self):
            self._holdings = holdings
            return run(self)

        monkeypatch.setattr(attempt.Attempt, "run", run_with)
        return holdings

    return hold


class Recording(ScriptedChildren):
    """Records each child's job, and the descriptors of devices that the child inherits."""

    def __init__(self, *scripts):
        super().__init__(scripts)
        self.jobs, self.descriptors = [], []

    def spawn(self, make_job, **descriptors):
        self.jobs.append(make_job())
        self.descriptors.append(descriptors["descriptors"])
        child = super().spawn(make_job, **descriptors)
        child._process = this_process()
        return child


def test_attempt_gives_its_devices_to_its_process(supervised, devices, hold):
    grant = hold(Holdings(devices.take(1))).grant
    children = Recording(GOOD)

    supervised.run(GOOD, forkserver=children, warm_starts=False)

    (job,), (descriptors,) = children.jobs, children.descriptors
    assert job.to_import.environment == {"CUDA_VISIBLE_DEVICES": A}
    assert job.to_import.holds_devices
    assert descriptors == grant.descriptors
    assert len(descriptors) == 1
    assert grant._leaders == {os.getpid()}
    assert not job.may_keep


def test_attempt_without_devices_passes_nothing_to_its_process(supervised, hold):
    children = Recording(GOOD)

    supervised.run(GOOD, forkserver=children)

    (job,) = children.jobs
    assert (job.to_import.environment, job.to_import.holds_devices) == ({}, False)
    assert (job.memory_bytes, job.cgroup, children.descriptors) == (None, None, [()])


@pytest.mark.parametrize("cgroup", [None, "folder"])
def test_limit_of_memory_reaches_the_process(supervised, hold, tmp_path, cgroup):
    folder = tmp_path if cgroup else None
    hold(Holdings(memory=MemoryLimit(2_000_000_000, folder)))
    children = Recording(GOOD)

    supervised.run(GOOD, forkserver=children)

    (job,) = children.jobs
    assert (job.memory_bytes, job.cgroup) == (2_000_000_000, folder and str(folder))


@pytest.mark.parametrize("held", ["nothing", "no device", "a device", "memory"])
def test_process_runs_another_trial_only_if_it_held_no_device_and_had_no_memory_limit(
    supervised, database, devices, hold, held
):
    hold(
        {
            "nothing": NOTHING_HELD,
            "no device": Holdings(devices.take(0)),
            "a device": Holdings(devices.take(1)),
            "memory": Holdings(memory=MemoryLimit(1)),
        }[held]
    )
    child = ReusedChild(reported() + KEPT, reported() + COMPLETED)
    child._process = this_process()
    children = Recording(child, GOOD)

    supervised.run(child, GOOD, forkserver=children, trials=2, warm_starts=True)

    second = "reused" if held in ("nothing", "no device") else "fresh"
    assert rows(database, "SELECT start FROM attempt ORDER BY trial_id") == [("fresh",), (second,)]


def test_memory_error_is_stored_with_the_limit_that_has_caused_it(supervised, database, hold):
    hold(Holdings(memory=MemoryLimit(2_000_000_000)))

    supervised.run(failed("MemoryError", "no room"))

    ((error,),) = rows(database, "SELECT error_message FROM attempt")
    assert "no room" in error
    assert "each of its processes may use 2 GB" in error


def test_refused_allocation_of_pytorch_is_stored_with_the_limit_that_has_caused_it(
    supervised, database, hold
):
    hold(Holdings(memory=MemoryLimit(2_000_000_000)))
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2400000000 bytes."

    supervised.run(failed("RuntimeError", message))

    ((error,),) = rows(database, "SELECT error_message FROM attempt")
    assert "each of its processes may use 2 GB" in error


def test_error_of_a_trial_that_was_killed_at_the_limit_of_its_cgroup_says_out_of_memory(
    supervised, database, hold, tmp_path
):
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    hold(Holdings(memory=MemoryLimit(2_000_000_000, tmp_path)))

    supervised.run(reported())

    ((reason, error),) = rows(database, "SELECT reason, error_message FROM attempt")
    assert reason == "LOST"
    assert "The trial was out of memory: its processes together may use 2 GB" in error


@pytest.mark.parametrize("warm", [False, True])
def test_worker_allows_warm_starts_with_devices_if_the_childs_first_message_says_so(
    supervised, monkeypatch, warm
):
    allowed = []
    monkeypatch.setattr(Templates, "allow_devices", lambda _, trainable: allowed.append(trainable))

    supervised.run(wire(Began(0.0, warm)) + GOOD)

    assert len(allowed) == warm
