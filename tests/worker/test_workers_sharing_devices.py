"""Workers of two databases share the devices of a host, and some of the workers are killed."""

import os
import random
import shutil
import time
from contextlib import ExitStack

import pytest
from fleet.stage import Stage
from fleet.workers import eventually
from harness.fake_nvidia_smi import UUIDS, FakeNvidiaSmi

KILLS = 100 if os.environ.get("STUDYDB_NIGHTLY") else 3
SLOTS = 4


@pytest.mark.timeout(900)
def test_no_device_is_given_to_two_trials_and_none_is_lost(tmp_path, sqlite_template):
    environment = {**FakeNvidiaSmi(tmp_path).environment, "STUDYDB_LOCK_DIR": str(tmp_path)}
    options = {"environment": environment, "slots": SLOTS, "wait": True}

    with ExitStack() as stack:
        stages = []
        for n in range(2):
            shutil.copyfile(sqlite_template, tmp_path / f"{n}.db")
            (tmp_path / f"of-{n}").mkdir()
            stage = Stage(f"sqlite:///{tmp_path}/{n}.db", tmp_path / f"of-{n}")
            stages.append(stack.enter_context(stage))
            stage.create(
                "witnessing:train",
                num_trials=100_000,
                resources={"gpus": 1},
                max_losses=10_000,
                space={"folder": str(tmp_path), "seconds": 0.05},
            )
        workers = [[stages[n % 2], stages[n % 2].start(**options)] for n in range(3)]
        eventually(lambda: n_trials(tmp_path) > 5, 60, what="the first trials")
        for _ in range(KILLS):
            time.sleep(random.uniform(0.0, 0.5))
            chosen = random.choice(workers)
            chosen[1].kill()
            chosen[1] = chosen[0].start(**options)
        before = n_trials(tmp_path)
        eventually(lambda: n_trials(tmp_path) > before + 10, 60, what="trials after the kills")
        eventually(lambda: used_since(tmp_path, before) == set(UUIDS), 60, what="use of each")

    assert not (tmp_path / "violations").exists()


def lines(folder):
    path = folder / "trials"
    return path.read_text().splitlines() if path.exists() else []


def n_trials(folder):
    return len(lines(folder))


def used_since(folder, n):
    return set(" ".join(lines(folder)[n:]).split())
