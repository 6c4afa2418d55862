"""
Trainables of every kind learn to read digits; a killed trial learns as much as an unkilled one.

One trial is killed twice: first together with its worker, then alone. Another trial with the
same parameters is not killed. Both trials must end with the same best and last values.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fleet.workers import TRAINABLES
from harness.turns import sqlite_alone

import studydb

storage_url = sqlite_alone

CONSOLE = Path(sys.executable).parent
IMAGES, STEPS, KILLED_BEFORE = 400, 9, (4, 8)
ERROR_BY_CHANCE = 0.9

FUNCTIONS = {
    "function": "digits_softmax:train",
    "generator": "digits_softmax:generate",
    "class": "digits_softmax:Learner",
}
COMMANDS = {
    "Python": [sys.executable, "digits_command.py", "--lr", "{lr}", "--folder", "{folder}"],
    "shell": ["sh", "digits.sh", "{lr}", "{folder}"],
    "Node": ["node", "digits.js", "{lr}", "{folder}"],
    "C": ["digits", "{lr}", "{folder}"],
}


def write_digits(folder):
    """Write a line for each image: the digit, and the brightness, 0 to 1, of 16 squares."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  takes a second

    images, digits = load_digits(return_X_y=True)
    squares = images[:IMAGES].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(IMAGES, 16) / 16
    rows = np.column_stack([digits[:IMAGES], squares])
    np.savetxt(folder / "digits.txt", rows, fmt=["%d"] + ["%.17g"] * 16)


def trainable(kind, folder):
    if kind in FUNCTIONS:
        return FUNCTIONS[kind]
    items = COMMANDS[kind]
    if kind == "Node" and shutil.which("node") is None:
        pytest.skip("Node is not installed here")
    if kind == "C":
        if shutil.which("cc") is None:
            pytest.skip("no C compiler is installed here")
        program = str(folder / "digits")
        subprocess.run(["cc", "-O1", "-o", program, TRAINABLES / "digits.c", "-lm"], check=True)
        items = [program, *items[1:]]
    return studydb.Command(items)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*FUNCTIONS, *COMMANDS])
def test_killed_trial_learns_as_much_as_one_that_was_not_killed(stage, kind, monkeypatch):
    monkeypatch.setenv("PATH", f"{CONSOLE}{os.pathsep}{os.environ['PATH']}")
    write_digits(stage.folder)
    holds = [stage.folder / f"hold-{step}" for step in KILLED_BEFORE]
    for hold in holds:
        hold.touch()
    stage.create(trainable(kind, stage.folder), metric="error", space={"lr": 2.0})
    first = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 3)
    first.kill()
    holds[0].unlink()
    second = stage.start(wait=True)
    stage.await_trial(lambda row: row.checkpoint_step >= 6)
    (trains,) = second.children() if kind in FUNCTIONS else second.commands()
    trains.kill()
    holds[1].unlink()
    stage.await_state("TERMINATED")

    stage.study.extend(num_trials=1)
    unkilled = stage.await_trial(lambda row: row.state == "TERMINATED", number=1)

    killed = stage.trial()
    assert [row.reason for row in stage.attempts()] == ["LOST", "LOST", "COMPLETED"]
    assert [row.reason for row in stage.attempts(1)] == ["COMPLETED"]
    assert stage.steps() == stage.steps(1) == list(range(1, STEPS + 1))
    assert (killed.best_value, killed.last_value) == (unkilled.best_value, unkilled.last_value)
    assert killed.best_value < ERROR_BY_CHANCE / 2
