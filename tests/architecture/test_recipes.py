"""The recipes in workers/: signals and exit codes for Slurm, settings of the systemd unit."""

import configparser
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORKER = """#!/bin/bash
echo "$@" > arguments
trap 'touch terminated; exit "$AFTER_TERM"' TERM
touch started
[ "$AFTER_TERM" = none ] && exit "$WITHOUT_TERM"
for _ in {1..1500}; do sleep 0.02; done
"""
"""
Stand-in for `studydb`.

At SIGTERM it exits with the code AFTER_TERM. If AFTER_TERM is "none", it waits for no signal and
exits with the code WITHOUT_TERM.
"""

REQUEUE = """#!/bin/bash
echo "$@" > requeued
"""


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start slurm-array.sh with stand-ins for `studydb` and `scontrol` that write files."""
    for name, code in (("studydb", WORKER), ("scontrol", REQUEUE)):
        (folder / name).write_text(code)
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": "3",
        **variables,
    }
    script = ROOT / "workers" / "slurm-array.sh"
    return subprocess.Popen(
        ["bash", script, *arguments], cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_array_task_ends_with_the_exit_code_of_its_worker(tmp_path, code):
    task = start(tmp_path, "digits", "--slots", "2", AFTER_TERM="none", WITHOUT_TERM=str(code))

    assert task.wait(30) == code
    assert (tmp_path / "arguments").read_text() == "worker --study digits --slots 2\n"
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("warning", "code", "is_requeued"),
    [
        (signal.SIGTERM, 143, True),
        (signal.SIGUSR1, 143, True),
        (signal.SIGUSR2, 143, True),
        (signal.SIGUSR1, 138, True),
        (signal.SIGUSR2, 140, True),
        (signal.SIGTERM, 0, False),
    ],
)
def test_array_task_is_requeued_if_a_signal_ended_its_worker_and_not_if_the_worker_ends_with_0(
    tmp_path, warning, code, is_requeued
):
    task = start(tmp_path, "digits", AFTER_TERM=str(code))
    await_file(tmp_path / "started")

    task.send_signal(warning)

    assert task.wait(30) == code
    assert (tmp_path / "terminated").exists()
    requeued = tmp_path / "requeued"
    assert requeued.exists() == is_requeued
    assert not is_requeued or requeued.read_text() == "requeue 77_3\n"


def test_array_script_without_a_study_is_a_usage_error(tmp_path):
    task = start(tmp_path)

    assert task.wait(30) == 2


def test_systemd_unit_waits_for_the_grace_and_does_not_restart_after_exit_codes_0_2_and_3():
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / "workers" / "studydb-worker@.service")

    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > 30
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2 3"
    assert "studydb worker --study" in service["ExecStart"]
