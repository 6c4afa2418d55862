"""
The test kills processes that take devices as workers do, while their trials hold devices.

Two trials use a device at once only if each of them has a part of it. After the kills each device
is used again, and at the end all devices are free. If root runs the test, the processes belong to
two users.
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
USE_S = 120.0


@pytest.fixture
def folder():
    """A folder in which every user may create files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_device_is_overcommitted_or_lost_when_its_users_are_killed(folder):
    make_witnesses(folder, UUIDS)
    environment = {**FakeNvidiaSmi(folder).environment, "STUDYDB_LOCK_DIR": str(folder)}
    own, other = os.getuid(), NOBODY if os.getuid() == 0 else os.getuid()

    with ExitStack() as stack:
        users = [DeviceUser(folder, uid, environment) for uid in (own, own, other)]
        for user in users:
            stack.callback(user.end)
        eventually(lambda: len(lines(folder)) >= 3, what="the first trials")
        for _ in range(KILLS):
            time.sleep(random.uniform(*PAUSES_S))
            random.choice(users).replace()
        n_before = len(lines(folder))
        eventually(
            lambda: used_devices(lines(folder)[n_before:]) == set(UUIDS),
            USE_S,
            what="use of each device after the last kill",
        )

    variables = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS), "STUDYDB_LOCK_DIR": str(folder)}
    devices = Devices.of("auto", variables)
    assert eventually(lambda: devices.take(len(UUIDS)), what="all devices free again")
    assert (folder / "violations").read_text() == ""


def lines(folder):
    return (folder / "trials").read_text().splitlines()


def used_devices(lines):
    return {name for line in lines for name in line.split()}
