"""Wrong reports and trainables: errors give fact, cause and cure, and no stored result is lost."""

import sys

import pytest
from harness.turns import sqlite_alone

import studydb

storage_url = sqlite_alone

WRONG = {
    "no JSON": (
        "echo '[studydb] error=1'",
        ("The report 'error=1' is not JSON", 'Write an object such as {"step": 3, "error": 0.1}'),
    ),
    "no object": (
        "echo '[studydb] [1]'",
        ("The report '[1]' is no JSON object", 'Write one such as {"step": 3, "error": 0.1}'),
    ),
    "no metric": (
        """echo '[studydb] {"loss": 1}'""",
        ("has no 'error', the study's metric; it has 'loss'", "Report 'error' at each step"),
    ),
    "path of a checkpoint on stdout": (
        """echo '[studydb] {"error": 1, "checkpoint": "/no/x"}'""",
        (
            "The report's checkpoint is '/no/x'",
            'Write the checkpoint to $STUDYDB_SAVE, and report "checkpoint": true',
        ),
    ),
    "empty checkpoint": (
        """echo '[studydb] {"error": 1, "checkpoint": true}'""",
        ("says that it saves a checkpoint", "$STUDYDB_SAVE is empty"),
    ),
    "no number": (
        "echo 'error=high'",
        ("--report-regex found error='high', which is no number",),
    ),
}


@pytest.mark.slow
def test_wrong_report_fails_its_trial_and_loses_no_result(stage):
    cases = "".join(f"{number}) {line};;\n" for number, (line, _) in enumerate(WRONG.values()))
    (stage.folder / "train.sh").write_text(
        "#!/bin/sh\n"
        """echo '[studydb] {"error": 0.5}'\n"""
        f"case $1 in\n{cases}esac\nsleep 60\n"
    )
    (stage.folder / "train.sh").chmod(0o755)
    command = studydb.Command(["./train.sh", "{case}"], r"error=(?P<error>\w+)$")
    stage.create(
        command,
        workdir=stage.folder,
        metric="error",
        space={"case": studydb.choice(range(len(WRONG)))},
        searcher=studydb.GridSearch(),
        num_trials=len(WRONG),
    )

    stage.run(slots=2)

    for number, (_, words) in enumerate(WRONG.values()):
        (attempt,) = stage.attempts(number)
        assert stage.trial(number).state == "ERROR"
        assert all(word in attempt.error_message for word in words), attempt.error_message
        assert stage.steps(number) == [1]
        assert attempt.error_type.endswith("InvalidReport")
        shown = stage.command("show", "staged", str(number))
        assert "Traceback" not in shown
        assert '[studydb] {"error": 0.5}' in shown  # the last lines of the output


@pytest.mark.slow
def test_checkpoint_that_does_not_exist_is_refused_and_the_trial_goes_on(stage):
    (stage.folder / "train.py").write_text(
        "import pathlib, studydb\n"
        "studydb.report({'error': 0.5})\n"
        "try:\n"
        "    studydb.report({'error': 0.4}, checkpoint='/no/such/place')\n"
        "except studydb.InvalidReport as error:\n"
        "    pathlib.Path(studydb.config()['folder'], 'error').write_text(str(error))\n"
        "studydb.report({'error': 0.3})\n"
    )
    stage.create(
        studydb.Command([sys.executable, "train.py"]),
        workdir=stage.folder,
        metric="error",
        space={},
    )

    assert stage.run() == 0, stage.attempts()

    said = (stage.folder / "error").read_text()
    assert "'/no/such/place' is not the full path of a directory" in said
    assert stage.steps() == [1, 2]


def test_unsigned_command_is_not_run_and_its_trial_waits(stage):
    (stage.folder / "train.sh").write_text('#!/bin/sh\ntouch "$1/ran"\n')
    (stage.folder / "train.sh").chmod(0o755)
    command = studydb.Command(["./train.sh", "{folder}"])
    study = stage.create(command, workdir=stage.folder, metric="error", space={})
    study.enqueue({})
    with study.database.begin() as txn:
        txn.run_text("DELETE FROM signature")

    worker = stage.start()

    assert worker.exit_code(30.0) == 1
    assert "is not signed by a key in " in worker.output()
    assert "Copy the keys of the account that created the study" in worker.output()
    assert "Traceback" not in worker.output()
    assert not (stage.folder / "ran").exists()
    stage.expect_released()


@pytest.mark.slow
def test_class_given_by_its_import_path_fails_its_trial_if_it_has_no_method_step(stage):
    stage.create("classes:Stepless")

    stage.run()

    (attempt,) = stage.attempts()
    assert stage.trial().state == "ERROR"
    assert attempt.error_message == (
        "The class Stepless has no method step; write step(self) -> metrics."
    )
