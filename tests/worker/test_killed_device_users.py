"""
Processes that take devices as workers do are killed while their trials hold devices.

No device is used by two trials at once, and all devices are free again at the end. If root runs the
test, the processes belong to two users.
"""

import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.device_users import DeviceUser, make_witnesses
from harness.fake_nvidia_smi import UUIDS, FakeNvidiaSmi

from studydb.devices import Devices

NOBODY = 65534
KILLS = 100 if os.environ.get("STUDYDB_NIGHTLY") else 12
PAUSES_S = (0.0, 0.25)


@pytest.fixture
def folder():
    """A folder in which every user may create files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.timeout(600)
def test_no_device_is_used_by_two_trials_at_once_or_lost_when_workers_are_killed(folder):
    make_witnesses(folder, UUIDS)
    environment = {**FakeNvidiaSmi(folder).environment, "STUDYDB_LOCK_DIR": str(folder)}
    own, other = os.getuid(), NOBODY if os.getuid() == 0 else os.getuid()

    with ExitStack() as stack:
        users = [DeviceUser(folder, uid, environment) for uid in (own, own, other)]
        for user in users:
            stack.callback(user.end)
        eventually(lambda: trials(folder) >= 3, what="the first trials")
        for _ in range(KILLS):
            time.sleep(random.uniform(*PAUSES_S))
            random.choice(users).replace()
        done = trials(folder)
        eventually(lambda: trials(folder) > done + 3, what="trials after the last kill")

    variables = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS), "STUDYDB_LOCK_DIR": str(folder)}
    devices = Devices.of("auto", variables)
    assert eventually(lambda: devices.take(len(UUIDS)), what="all devices free again")
    assert (folder / "violations").read_text() == ""
    assert {name for line in lines(folder) for name in line.split()} == set(UUIDS)


def lines(folder):
    return (folder / "trials").read_text().splitlines()


def trials(folder):
    return len(lines(folder))
