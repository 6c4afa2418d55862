"""The example of docs/custom-schedulers.md runs as it is written, although processes are killed."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fleet.workers import eventually
from harness.documented_code import commands, only_block

import studydb
from studydb.operations.reads import list_trials

TRAIN = """
import time

def main(config, trial):
    for step in range(trial.start_step + 1, 12):
        trial.report({"loss": config["lr"] + 1 / step}, checkpoint={"step": step})
        time.sleep(0.05)
"""


def test_example_has_fewer_than_40_lines():
    assert only_block("custom-schedulers.md", "python").count("\n") < 40


@pytest.mark.nightly
@pytest.mark.row("E12")
def test_example_of_the_page_runs_although_the_worker_and_the_decider_are_killed(
    stage, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDYDB_STORAGE", stage.storage)
    (tmp_path / "my_rules.py").write_text(only_block("custom-schedulers.md", "python"))
    (tmp_path / "train.py").write_text(TRAIN)
    (words,) = commands("custom-schedulers.md")
    stage.command(*words)
    console = Path(sys.executable).parent / "studydb"
    work = [console, "worker", "--study", "heats", "--lease", "2"]
    study = studydb.load_study("heats", storage=stage.storage)

    with subprocess.Popen(work) as worker:
        decider = eventually(lambda: decider_of(worker.pid))
        decider.kill()
        decider.wait(10)
        again = eventually(lambda: decider_of(worker.pid))
        assert again != decider
        eventually(lambda: any(row.summary.last_step == 2 for row in rows(study)))
        worker.kill()
    assert subprocess.run(work, check=True, timeout=120).returncode == 0

    best, *others = sorted(rows(study), key=lambda row: row.params["lr"])
    assert (best.summary.last_step, best.reason) == (9, "COMPLETED")
    ends = {(row.summary.last_step, row.reason) for row in others}
    assert ends <= {(9, "COMPLETED"), (2, "GIVEN_UP"), (2, "EARLY_STOPPED")}
    assert [row.reason for row in others].count("GIVEN_UP") >= 3
    assert study.status == "FINISHED"
    for row in others:
        if row.reason == "EARLY_STOPPED":
            shown = stage.command("show", "heats", str(row.number))
            assert "my_rules:Heats(max_t=9): NaN, or worse than the winners" in shown
    study.close()


def rows(study):
    return list_trials(study.database, study.record)


def decider_of(pid):
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.name() == "studydb-decider":
                return process
        except psutil.NoSuchProcess:
            continue
    return None
