"""
A worker whose host cannot start the process of a trial releases the trial and says why.

If the host was out of memory, the error of a killed trial says so.
"""

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

SHORT_PAUSES = {"worker.attempt.START_PAUSES_S": (0.1,) * 4}
"""The pauses between the five tries to start a trial, shorter than the defaults."""

OTHER_USER = 54321
"""The id of a user other than root, because root is exempt from the limit on processes."""

_RUN = """
import os, sys
from studydb.worker import attempt, fork_server_client
attempt.START_PAUSES_S = (0.1,) * 4
{change}
from studydb.worker.worker_options import WorkerOptions
from studydb.worker.supervisor import run_worker
sys.exit(run_worker(WorkerOptions(storage=sys.argv[1], study="staged", say=print)))
"""

_FORK_SERVER_OF_OTHER_USER = _RUN.format(
    change=f"""
become = "import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); os.setgroups([]); "
become += "os.setresgid(*[{OTHER_USER}] * 3); os.setresuid(*[{OTHER_USER}] * 3); main("
fork_server_client._COMMAND = tuple(part.replace("main(", become) for part in fork_server_client._COMMAND)
"""
)
"""A worker whose fork server runs as another user, who may have only one process."""

_OUT_OF_MEMORY = _RUN.format(
    change="""
import itertools
kills = itertools.count(int(sys.argv[2]), int(sys.argv[3]))
attempt.oom_kills = lambda: next(kills)
"""
)

_REFUSED_TWICE = _RUN.format(
    change="""
fork, refusals = fork_server_client.ForkServer.fork, [11] * 4  # EAGAIN for a template and a child, twice
def refusing(self, *given, **named):
    if refusals:
        raise OSError(refusals.pop(), "Resource temporarily unavailable")
    return fork(self, *given, **named)
fork_server_client.ForkServer.fork = refusing
"""
)

_COMMAND = """
from studydb.worker import attempt
attempt.START_PAUSES_S = (0.1,) * 4
from studydb.__main__ import main
main(["worker", "--study", "staged"])
"""


def expect_preempted(stage: Stage, number: int) -> None:
    stage.expect_released(number)
    assert [one.reason for one in stage.attempts(number)] == ["PREEMPTED"]


@pytest.mark.slow
def test_worker_without_free_descriptors_releases_the_trial_and_names_the_limit(sqlite_stage):
    stage = sqlite_stage
    stage.create("obedient:gated", num_trials=3)
    worker = stage.start(constants=SHORT_PAUSES)
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (8, 8))
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 1
    assert "Too many open files" in worker.output()
    assert "ulimit -n" in worker.output()
    assert "Traceback" not in worker.output()
    expect_preempted(stage, 1)


@pytest.mark.slow
def test_worker_without_a_scratch_directory_releases_the_trial(sqlite_stage, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    sqlite_stage.create("obedient:gated", num_trials=3)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    worker = sqlite_stage.start(constants=SHORT_PAUSES)
    sqlite_stage.await_trial(lambda row: row.checkpoint_step == 1)

    shutil.rmtree(tmp_path / "scratch")
    sqlite_stage.open_gate("all")

    assert worker.exit_code(60.0) == 1
    assert "TMPDIR" in worker.output()
    expect_preempted(sqlite_stage, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("few", [4, 8, 12, 16])
def test_worker_started_with_few_descriptors_prints_no_traceback(sqlite_stage, few):
    sqlite_stage.create("obedient:one_step")

    limited = f"ulimit -n {few} && exec {sys.executable} -c '{_COMMAND}'"
    worker = sqlite_stage.fleet.launch(["sh", "-c", limited])

    assert worker.exit_code(60.0) in {0, 1}
    if few > 4:  # with 4, Python itself does not start
        assert "Traceback" not in worker.output(), worker.output()
    rows = [] if worker.exit_code() else sqlite_stage.attempts()
    assert all(row.reason == "COMPLETED" for row in rows)


@pytest.fixture
def writable_stage() -> Iterator[Stage]:
    """A stage in a folder that every user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="studydb-open-"))
    folder.chmod(0o777)
    with Stage(f"sqlite:///{folder}/studydb.db", folder) as stage:
        yield stage
    shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process of another user")
@pytest.mark.skipif(sys.platform != "linux", reason="macOS lacks os.setresuid")
def test_worker_that_cannot_fork_releases_the_trial_and_names_the_limit(writable_stage):
    writable_stage.create("obedient:one_step", num_trials=3)
    worker = writable_stage.fleet.launch(
        [sys.executable, "-c", _FORK_SERVER_OF_OTHER_USER, writable_stage.storage]
    )

    assert worker.exit_code(60.0) == 1
    assert "ulimit -u" in worker.output()
    expect_preempted(writable_stage, 0)


@pytest.mark.slow
def test_fork_that_the_host_has_refused_is_tried_again(sqlite_stage):
    sqlite_stage.create("obedient:one_step")
    worker = sqlite_stage.fleet.launch([sys.executable, "-c", _REFUSED_TWICE, sqlite_stage.storage])

    assert worker.exit_code(60.0) == 0
    assert sqlite_stage.trial().reason == "COMPLETED"
    assert len(sqlite_stage.attempts()) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("more", [0, 1])
def test_error_of_a_killed_trial_says_if_the_host_was_out_of_memory(sqlite_stage, more):
    sqlite_stage.create("misbehaving:kills_itself", max_losses=0)
    command = [sys.executable, "-c", _OUT_OF_MEMORY, sqlite_stage.storage, "7", str(more)]

    sqlite_stage.fleet.launch(command).exit_code(60.0)

    message = sqlite_stage.attempts()[0].error_message
    assert "was killed by SIGKILL" in message
    assert ("out of memory" in message) == bool(more)


def test_oom_kills_are_read_from_vmstat(tmp_path):
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\ndrop_pagecache 0\n")

    assert oom_kills(tmp_path / "vmstat") == 3
    assert oom_kills(tmp_path / "none") == 0
