"""Each trial has a directory on its host; with `--chdir trial` the trial's code runs there."""

import os
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from fleet.host_users import NOBODY
from harness.child_messages import expect_failure
from harness.turns import sqlite_alone

import studydb
from studydb.child.messages import End

storage_url = sqlite_alone


def directory_of(stage, number=0):
    return stage.study.database.locations.log_root(stage.study.record) / str(number) / "files"


def where(stage):
    return (stage.folder / "where").read_text().splitlines()


def test_function_knows_the_directory_and_the_name_of_its_trial(stage):
    stage.create("placed:train")
    stage.study.enqueue({}, name="base line", tags=["old"])

    assert stage.run() == 0

    trial = stage.study.trial("base line")
    names = str(["base line", ["old"], trial.uuid, 0])
    assert where(stage) == [str(stage.folder), str(directory_of(stage)), names]
    assert (directory_of(stage) / "note").exists()


@pytest.mark.parametrize("start", ["auto", "fresh"])
def test_function_runs_in_the_directory_of_its_trial_and_finds_its_modules(stage, start):
    stage.create("placed:train")

    assert stage.run(chdir="trial", start=start) == 0, stage.attempts()

    assert where(stage)[:2] == [str(directory_of(stage))] * 2


@pytest.mark.parametrize(
    ("chdir", "place"), [("trial", directory_of), ("workdir", lambda stage: stage.folder)]
)
def test_class_knows_the_directory_of_its_trial(stage, chdir, place):
    stage.create("placed:Placed")

    assert stage.run(chdir=chdir) == 0, stage.attempts()

    assert where(stage) == [str(place(stage)), str(directory_of(stage))]
    assert (directory_of(stage) / "note").read_text() == "from a class"


def create_command(stage, *items, **options):
    """Create a study of a command; return its workdir, a folder whose name contains braces."""
    here = stage.folder / "here {x}"
    here.mkdir()
    train = here / "train.sh"
    train.write_text('#!/bin/sh\npwd > "$1/where"\necho "$STUDYDB_DIRECTORY" >> "$1/where"\n')
    with train.open("a") as file:
        file.write('echo "$STUDYDB_ATTEMPT" >> "$STUDYDB_DIRECTORY/note"\n')
        file.write('[ "$2$STUDYDB_ATTEMPT" != twice1 ] || exit 143\n')
        file.write("echo '{\"error\": 1}' > out-0\necho '[studydb] {\"error\": 1}'\n")
    train.chmod(train.stat().st_mode | stat.S_IXUSR)
    (here / "train.py").write_text(
        "import os, pathlib, sys\n"
        "assert sys.argv[2] == 'train.py'  # a parameter's value is not made a full path\n"
        "text = os.getcwd() + '\\n' + os.environ['STUDYDB_DIRECTORY']\n"
        "pathlib.Path(sys.argv[1], 'where').write_text(text)\n"
        "print('[studydb] {\"error\": 1}')\n"
    )
    command = studydb.Command(items, **options)
    space = {"file": "train.py"}
    stage.create(command, workdir=here, metric="error", space=space)
    return here


@pytest.mark.parametrize(
    "items",
    [
        ["./train.sh", "{folder}"],
        [sys.executable, "train.py", "{folder}", "{file}"],
    ],
)
def test_command_runs_in_the_directory_of_its_trial_and_its_files_are_found(stage, items):
    create_command(stage, *items)

    assert stage.run(chdir="trial") == 0, stage.attempts()

    assert where(stage) == [str(directory_of(stage))] * 2


def test_command_runs_in_the_workdir_and_all_attempts_get_the_directory_of_the_trial(stage):
    here = create_command(stage, "./train.sh", "{folder}", "twice")

    assert stage.run() == 0, stage.attempts()

    assert where(stage) == [str(here), str(directory_of(stage))]
    assert (directory_of(stage) / "note").read_text() == "1\n2\n"


def test_report_file_of_a_command_lies_in_its_working_directory(stage):
    create_command(stage, "./train.sh", "{folder}", report_file="out-{trial}")

    assert stage.run(chdir="trial") == 0, stage.attempts()

    assert len(stage.steps()) == 2
    assert (directory_of(stage) / "out-0").exists()


def test_own_loop_has_a_directory_per_trial(stage):
    stage.create(None)

    with stage.study.ask() as trial:
        assert not directory_of(stage).exists()
        (trial.directory / "note").write_text("mine")
        trial.report({"loss": 1})

    assert (trial.name, trial.tags, trial.uuid) == (None, (), stage.study.trial(0).uuid)
    assert Path(directory_of(stage), "note").read_text() == "mine"


def test_deletion_of_a_study_removes_the_directories_of_its_trials(stage):
    stage.create("placed:train")
    assert stage.run() == 0
    directory = directory_of(stage)
    assert directory.is_dir()

    stage.command("delete", "staged", "--yes")

    assert not directory.exists()


@pytest.mark.parametrize("harm", ["file", "link"])
def test_trial_whose_directory_cannot_be_made_fails_and_the_next_trial_completes(stage, harm):
    stage.create("placed:train", num_trials=2, max_failures=0)
    spoiled = directory_of(stage)
    spoiled.parent.mkdir(parents=True)
    if harm == "file":
        spoiled.write_text("in the place of the directory")
    else:
        spoiled.symlink_to(spoiled)

    assert stage.run(chdir="trial") == 0

    assert [stage.trial(number).reason for number in (0, 1)] == ["FAILED", "COMPLETED"]
    assert "files" in stage.attempts(0)[0].error_message


def test_trial_is_given_back_if_the_folder_of_all_trials_cannot_be_made(stage):
    stage.create("placed:train")
    spoiled = directory_of(stage).parents[1]
    spoiled.parent.mkdir(parents=True)
    spoiled.write_text("in the place of the study's folder")
    worker = stage.start(chdir="trial")

    assert worker.exit_code() == 1

    assert "This host cannot run the trial" in worker.output()
    stage.expect_released()


@contextmanager
def mounted(folder):
    """Mount a file system with the directory of a trial in a folder; yield how to remount it."""
    try:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process cannot mount a file system")
    try:
        yield lambda how: subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_trial_is_given_back_if_its_directory_is_on_a_read_only_file_system(run, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with mounted(folder) as remount:
        directory = folder / "7" / "files"
        directory.mkdir(parents=True)
        remount("ro")

        messages = run(write_note, directory=str(directory), runs_in_directory=True)

        expect_failure(messages, "OSError", "Read-only file system", end=End.UNPREPARED)


def write_note(config):
    Path("note").touch()
    return 1.0


@pytest.fixture
def folder_for_all():
    """A folder of this user that every user may enter; other users cannot enter `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("exists", [True, False])
def test_trial_is_given_back_if_its_directory_belongs_to_another_user(
    run, module, tmp_path, folder_for_all, exists
):
    directory = folder_for_all / "7" / "files"
    (directory if exists else directory.parent).mkdir(parents=True)
    trainable = module(f"""
        import os
        from pathlib import Path
        os.seteuid({NOBODY})

        def train(config):
            Path("note").touch()
            return 1.0
    """)

    messages = run(trainable, directory=str(directory), runs_in_directory=True)

    expect_failure(messages, "PermissionError", str(directory), end=End.UNPREPARED)
