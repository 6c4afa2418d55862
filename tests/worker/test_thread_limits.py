"""A trial gets a share of the cores for BLAS and OpenMP threads, unless the user sets a limit."""

import json
import os

import pytest

from studydb.worker.cores import THREAD_VARIABLES, available_cores, thread_limits
from studydb.worker.worker_processes import WorkerProcesses

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def unset(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def limits_in_trial(stage):
    environment = json.loads((stage.folder / "facts.json").read_text())["environment"]
    return {environment.get(name) for name in THREAD_VARIABLES}


@pytest.mark.parametrize("slots", [1, 2, 64])
def test_slots_share_the_cores(sqlite_stage, unset, slots):
    sqlite_stage.create("obedient:inspected")

    assert sqlite_stage.run(slots=slots) == 0
    assert limits_in_trial(sqlite_stage) == {str(max(1, available_cores() // slots))}


@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_worker_sets_no_thread_limit_if_the_user_has_set_one(unset, monkeypatch, name):
    monkeypatch.setenv(name, "7")

    assert thread_limits(os.environ, parts=2) == {}


def test_trial_keeps_a_thread_limit_that_the_user_has_set(sqlite_stage, unset, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    sqlite_stage.create("obedient:inspected")

    assert sqlite_stage.run(slots=2) == 0
    assert limits_in_trial(sqlite_stage) == {"7", None}


@pytest.mark.nightly
def test_workers_of_one_call_of_study_run_share_the_cores(sqlite_stage, unset):
    study = sqlite_stage.create("obedient:inspected")

    with WorkerProcesses(storage=sqlite_stage.storage, study=study.name, workers=CORES + 1) as team:
        sqlite_stage.await_state("TERMINATED", timeout_s=120.0)
        assert team.pids
    assert limits_in_trial(sqlite_stage) == {"1"}


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", CORES),
        ("100000 100000", 1),
        ("50000 100000", 1),
        (f"{CORES}00000 100000", CORES),
    ],
)
def test_quota_of_a_cgroup_bounds_the_cores(tmp_path, quota, cores):
    (tmp_path / "self").write_text("0::/user/worker\n")
    (tmp_path / "user" / "worker").mkdir(parents=True)
    (tmp_path / "user" / "worker" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "user" / "cpu.max").write_text(f"{quota}\n")

    assert available_cores(tmp_path / "self", tmp_path) == cores


def test_quota_of_a_version_1_cgroup_bounds_the_cores(tmp_path):
    (tmp_path / "self").write_text("4:cpu,cpuacct:/worker\n1:name=systemd:/worker\n")
    folder = tmp_path / "cpu" / "worker"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("100000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")

    assert available_cores(tmp_path / "self", tmp_path) == 1


def test_available_cores_without_cgroups_are_those_of_the_cpu_affinity(tmp_path):
    assert available_cores(tmp_path / "none", tmp_path) == CORES
