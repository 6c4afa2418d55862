"""Runs the commands of docs/control.md in the page's order; tests `extend` and `status`, too."""

import re
from pathlib import Path

import pytest
from harness.arrange import SimulatedWorker

import studydb
from studydb.domain.life.states import Reason

PAGE = Path(__file__).parents[2] / "docs" / "control.md"


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


def words(command):
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', command)][1:]


@pytest.mark.row("A12", "A17", "C4")
def test_commands_of_the_page_run_in_their_order(console, create_study, storage_url):
    space = {"lr": studydb.loguniform(1e-4, 1.0)}
    study = create_study("digits", space=space, num_trials=3, storage=storage_url)
    worker = SimulatedWorker(study.database, study.record)
    study.enqueue({"lr": 0.5})
    runs = [worker.take() for _ in range(2)]
    study.enqueue({"lr": 0.25})
    runs[0].finish(outcome=Reason.PREEMPTED)

    for command in commands():
        if command == "studydb retry digits 1":  # the trial must have ended
            runs[1].finish(0.5, outcome=Reason.PREEMPTED)
        console(*words(command))

    rows = console("trials", "digits", "--format", "json").json
    assert [(row["state"], row["reason"], row["parent"]) for row in rows] == [
        ("PENDING", None, None),
        ("TERMINATED", "CANCELLED", None),
        ("TERMINATED", "CANCELLED", None),
        ("PENDING", None, 1),
        ("PENDING", None, 2),
    ]
    assert rows[0]["changed"] == {"lr": 0.01}
    assert rows[1]["tags"] == ["good"]
    assert rows[2]["invalidated_at"] is None
    assert console("trials", "digits-again", "--format", "json").json == []


@pytest.mark.row("A21")
def test_finished_study_takes_more_trials(console, create_study, storage_url):
    study = create_study("digits", space={"lr": 0.5}, num_trials=1, storage=storage_url)
    worker = SimulatedWorker(study.database, study.record)
    worker.take().finish(0.5)
    assert worker.ask() is None

    console("extend", "digits", "--trials", "1")

    assert study.status == "RUNNING"
    worker.take().finish(0.25)
    assert study.best_trial.number == 1


@pytest.mark.row("A5")
def test_status_lists_twenty_live_trials_shared_fairly_among_states(
    console, create_study, storage_url
):
    study = create_study("digits", space={"lr": 0.5}, num_trials=60, storage=storage_url)
    worker = SimulatedWorker(study.database, study.record)
    for _ in range(15):
        worker.ask()
    waiting = [study.enqueue({}) for _ in range(33)]
    study.pause(*waiting[:3])

    live = console("status", "digits", "--format", "json").json["live"]

    shown = {}
    for row in live:
        shown.setdefault(row["state"], []).append(row["number"])
    assert {state: len(numbers) for state, numbers in shown.items()} == {
        "RUNNING": 8,
        "PENDING": 9,
        "PAUSED": 3,
    }
    assert all(numbers == sorted(numbers) for numbers in shown.values())
    counted = next(line for line in console("status", "digits").lines if line.startswith("trials"))
    assert "48 of 60: 30 PENDING, 15 RUNNING, 3 PAUSED" in counted
    assert "not shown: 7 RUNNING, 21 PENDING" in console("status", "digits").out
