"""Hosts that cannot start the process of a trial: no processes, no descriptors, no disk."""

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet.stage import Stage

from studydb.worker.host import oom_kills

BRIEFLY = {"worker.attempt.START_PAUSES_S": (0.1,) * 4}
"""A worker tries to start a trial five times, but waits less in between."""

STRANGER = 54321
"""A user of the test's own: root may start as many processes as it likes."""

_RUN = """
import os, sys
from studydb.worker import attempt, fork_server_client
attempt.START_PAUSES_S = (0.1,) * 4
{change}
from studydb.worker.worker_options import WorkerOptions
from studydb.worker.supervisor import run_worker
sys.exit(run_worker(WorkerOptions(storage=sys.argv[1], study="staged", say=print)))
"""

_AS_STRANGER = _RUN.format(
    change=f"""
become = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); os.setgroups([]); os.setresgid({STRANGER}, {STRANGER}, {STRANGER}); "
become += "os.setresuid({STRANGER}, {STRANGER}, {STRANGER}); main("
fork_server_client._COMMAND = tuple(part.replace("main(", become) for part in fork_server_client._COMMAND)
"""
)
"""A worker whose fork server belongs to the stranger, who may have one process."""

_OUT_OF_MEMORY = _RUN.format(
    change="""
import itertools
kills = itertools.count(int(sys.argv[2]), int(sys.argv[3]))
attempt.oom_kills = lambda: next(kills)
"""
)

_REFUSED_TWICE = _RUN.format(
    change="""
fork, refusals = fork_server_client.ForkServer.fork, [11] * 4  # a template and a fresh start, twice
def refusing(self, *given, **named):
    if refusals:
        raise OSError(refusals.pop(), "Resource temporarily unavailable")
    return fork(self, *given, **named)
fork_server_client.ForkServer.fork = refusing
"""
)


_COMMAND = """
import sys
from studydb.worker import host
host.START_PAUSES_S = (0.1,) * 4
from studydb.__main__ import main
main(["worker", "--study", "staged"])
"""


def expect_given_back(stage: Stage, number: int) -> None:
    """A trial that was begun and could not be run here has spent nothing."""
    given_back = stage.trial(number)
    assert (given_back.state, given_back.failures, given_back.losses) == ("PENDING", 0, 0)
    assert [one.reason for one in stage.attempts(number)] == ["PREEMPTED"]


def test_worker_without_free_descriptors_releases_the_trial_and_names_the_limit(stage):
    stage.create("obedient:gated", num_trials=3)
    worker = stage.start(constants=BRIEFLY)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (8, 8))
    stage.open("all")

    assert worker.exit_code(60.0) == 1
    assert "Too many open files" in worker.output()
    assert "ulimit -n" in worker.output()
    assert "Traceback" not in worker.output()
    expect_given_back(stage, 1)


def test_worker_without_a_scratch_directory_releases_the_trial(sqlite_stage, tmp_path, monkeypatch):
    stage = sqlite_stage
    (tmp_path / "scratch").mkdir()
    stage.create("obedient:gated", num_trials=3)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    worker = stage.start(constants=BRIEFLY)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    shutil.rmtree(tmp_path / "scratch")
    stage.open("all")

    assert worker.exit_code(60.0) == 1
    assert "TMPDIR" in worker.output()
    expect_given_back(stage, 1)


@pytest.mark.parametrize("few", [4, 8, 12, 16])
def test_worker_started_with_few_descriptors_prints_no_traceback(sqlite_stage, few):
    stage = sqlite_stage
    stage.create("obedient:one_step")

    limited = f"ulimit -n {few} && exec {sys.executable} -c '{_COMMAND}'"
    worker = stage.fleet.launch(["sh", "-c", limited])

    assert worker.exit_code(60.0) in {0, 1}
    if few > 4:  # below, Python itself does not start
        assert "Traceback" not in worker.output(), worker.output()
    rows = [] if worker.exit_code() else stage.attempts()
    assert all(row.reason == "COMPLETED" for row in rows)


@pytest.fixture
def others_stage() -> Iterator[Stage]:
    """A stage in a folder that is open to every user."""
    folder = Path(tempfile.mkdtemp(prefix="studydb-open-"))
    folder.chmod(0o777)
    with Stage(f"sqlite:///{folder}/studydb.db", folder) as stage:
        yield stage
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a worker of another user")
@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_worker_that_cannot_fork_releases_the_trial_and_names_the_limit(others_stage):
    stage = others_stage
    stage.create("obedient:one_step", num_trials=3)
    worker = stage.fleet.launch([sys.executable, "-c", _AS_STRANGER, stage.storage])

    assert worker.exit_code(60.0) == 1
    assert "ulimit -u" in worker.output()
    expect_given_back(stage, 0)


def test_refused_fork_is_tried_again(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:one_step")
    worker = stage.fleet.launch([sys.executable, "-c", _REFUSED_TWICE, stage.storage])

    assert worker.exit_code(60.0) == 0
    assert stage.trial().reason == "COMPLETED"
    assert len(stage.attempts()) == 1


@pytest.mark.parametrize("more", [0, 1])
def test_error_of_a_killed_trial_says_if_the_kernel_was_out_of_memory(sqlite_stage, more):
    stage = sqlite_stage
    stage.create("misbehaving:kills_itself", max_losses=0)
    command = [sys.executable, "-c", _OUT_OF_MEMORY, stage.storage, "7", str(more)]

    stage.fleet.launch(command).exit_code(60.0)

    message = stage.attempts()[0].error_message
    assert "was killed by SIGKILL" in message
    assert ("out of memory" in message) == bool(more)


def test_oom_kills_are_read_from_vmstat(tmp_path):
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\ndrop_pagecache 0\n")

    assert oom_kills(tmp_path / "vmstat") == 3
    assert oom_kills(tmp_path / "none") == 0
