"""Reading and exporting checkpoints; a checkpoint not signed by the user's keys is not opened."""

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from fleet.stage import Stage
from harness.turns import sqlite_alone

from studydb.__main__ import main
from studydb.db.schema import checkpoint as checkpoint_table
from studydb.domain.errors import CheckpointError, UnknownTrial
from studydb.temporary import remove_abandoned

storage_url = sqlite_alone


KINDS = ["saving:as_dict", "saving:as_directory"]


@pytest.fixture(scope="module", params=KINDS)
def saved(request, sqlite_template, tmp_path_factory):
    """A study with one trial and two checkpoints; the tests share the study and only read it."""
    folder = tmp_path_factory.mktemp("saved")
    shutil.copyfile(sqlite_template, folder / "studydb.db")
    with Stage(f"sqlite:///{folder}/studydb.db", folder) as stage:
        stage.create(request.param)
        assert stage.run() == 0
        yield stage


@pytest.fixture
def console(tmp_path, monkeypatch, capsys):
    """Return a function that runs `studydb export-checkpoint` and returns what it printed."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(stage, *arguments, code=0):
        monkeypatch.setenv("STUDYDB_STORAGE", stage.storage)
        with pytest.raises(SystemExit) as ended:
            main(("export-checkpoint", "staged", *arguments))
        printed = "".join(capsys.readouterr())
        assert (ended.value.code or 0) == code, printed
        return printed

    return run


def contents(checkpoint):
    if checkpoint.kind == "dict":
        return checkpoint.to_dict()
    return (checkpoint.path / "deep" / "model.txt").read_text()


def test_checkpoint_attribute_of_a_trial_is_its_newest_checkpoint(saved):
    for trial in (saved.study.best_trial, saved.study.trials[0], saved.study.trial(0)):
        checkpoint = trial.checkpoint

        assert checkpoint.step == 2
        whole = {"weights": [0.25, 2]} if checkpoint.kind == "dict" else "step 2"
        assert contents(checkpoint) == whole


@pytest.mark.nightly
@pytest.mark.parametrize("saved", ["saving:as_directory"], indirect=True)
def test_path_of_a_checkpoint_is_a_private_copy_that_is_deleted_at_exit(saved, tmp_path):
    script = (
        "import studydb, sys\n"
        "checkpoint = studydb.load_study('staged', storage=sys.argv[1]).best_trial.checkpoint\n"
        "(checkpoint.path / 'mine.txt').write_text('mine')\n"
        "assert checkpoint.path == checkpoint.path\n"
        "print(checkpoint.path)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script, saved.storage], capture_output=True, text=True, check=True
    )

    assert not Path(ran.stdout.strip()).exists()
    stored = saved.study.best_trial.checkpoint.export(tmp_path / "again")
    assert not (stored / "mine.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["saving:as_directory"], indirect=True)
def test_copy_of_a_checkpoint_that_a_killed_process_has_left_is_removed(
    saved, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = (
        "import os, signal, studydb, sys\n"
        "checkpoint = studydb.load_study('staged', storage=sys.argv[1]).best_trial.checkpoint\n"
        "print(checkpoint.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script, saved.storage],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    left = Path(ran.stdout.strip())
    assert left.is_dir()
    remove_abandoned()

    assert not left.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("saved", ["saving:as_directory"], indirect=True)
def test_path_of_a_checkpoint_is_a_new_copy_if_the_first_copy_was_deleted(saved):
    first = saved.study.best_trial.checkpoint.path
    shutil.rmtree(first.parents[1])

    assert (saved.study.best_trial.checkpoint.path / "deep" / "model.txt").is_file()


def test_dict_checkpoint_has_no_path_and_directory_checkpoint_has_no_dict(saved):
    checkpoint = saved.study.best_trial.checkpoint

    with pytest.raises(CheckpointError, match=r"use its \.(to_dict|path)"):
        _ = checkpoint.path if checkpoint.kind == "dict" else checkpoint.to_dict()


@pytest.mark.row("D5")
def test_trial_that_saved_nothing_has_checkpoint_none_and_its_export_is_refused(stage, console):
    stage.create("saving:nothing")
    stage.run()

    assert stage.study.best_trial.checkpoint is None
    ran = console(stage, "--best", "model", code=1)
    assert "Trial 0 has no checkpoint" in ran
    with pytest.raises(UnknownTrial):
        stage.study.trial(7)


@pytest.mark.parametrize("trainable", KINDS)
def test_checkpoint_not_signed_by_a_key_of_the_user_is_not_opened(
    stage, console, tmp_path, trainable
):
    stage.create(trainable)
    assert stage.run() == 0
    database = stage.study.database
    with database.begin() as txn:
        txn.run(sa.update(checkpoint_table).values(step=7))
    checkpoint = stage.study.best_trial.checkpoint

    with pytest.raises(CheckpointError, match="at step 7 is not signed by a key of yours"):
        contents(checkpoint)
    ran = console(stage, "0", str(tmp_path / "model"), code=1)
    assert "is not signed by a key of yours" in ran
    assert not (tmp_path / "model").exists()


def test_export_command_copies_a_directory_and_pickles_a_dict(saved, console, tmp_path):
    kind = saved.study.best_trial.checkpoint.kind

    by_number = console(saved, "0", str(tmp_path / "a" / "model"))
    console(saved, "--best", str(tmp_path / "best"))

    assert (
        f"Exported the checkpoint of trial 0 (step 2, {kind}) to {tmp_path}/a/model." in by_number
    )
    for place in (tmp_path / "a" / "model", tmp_path / "best"):
        if kind == "dict":
            assert pickle.loads((place / "checkpoint.pkl").read_bytes()) == {"weights": [0.25, 2]}
        else:
            assert (place / "deep" / "model.txt").read_text() == "step 2"


@pytest.mark.parametrize(
    ("typed", "message", "code"),
    [
        (("0",), "NAME TRIAL DIR` or `studydb export-checkpoint NAME --best DIR`.", 2),
        (("0", "a", "b", "--best"), "Write `studydb export-checkpoint NAME --best DIR`", 2),
        (("0", "model", "--best", "--step", "1"), "Give --step or --best, not both", 2),
        (("0", "model", "--step", "7"), "has no checkpoint of step 7. Its newest checkpoints", 1),
        (("first", "model"), "has no trial named 'first'", 1),
        (("7", "model"), "has no trial 7", 1),
        (("0", "."), "exists; name a directory that does not exist", 1),
    ],
)
@pytest.mark.parametrize("saved", ["saving:as_dict"], indirect=True)
def test_export_command_explains_wrong_arguments(saved, console, typed, message, code):
    assert message in console(saved, *typed, code=code)


def test_repr_of_a_trial_is_one_short_line(saved):
    trial = saved.study.best_trial

    assert repr(trial).startswith("<trial 0: COMPLETED, best_value 0.5 at step 2, params {")
    assert len(repr(trial)) < 200
    assert repr(saved.study.trials) == f"[{trial!r}]"
