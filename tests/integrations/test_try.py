"""`studydb try` runs one trial in the foreground and stores nothing."""

import errno
import json
import sys

import click
import pytest
from fleet.workers import TRAINABLES, eventually
from harness.arrange import dump

import studydb
from studydb.processes import start_of


@pytest.fixture
def study(here, sqlite_url, monkeypatch):
    """A function that creates the study `tried`; commands use its database."""
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_url)
    monkeypatch.setattr(sys, "argv", sys.argv)  # pytest restores sys.argv, which `try` changes

    def create(trainable, **options):
        given = {"metric": "loss", "mode": "min", "num_trials": 1, "workdir": here}
        return studydb.create_study("tried", trainable, storage=sqlite_url, **(given | options))

    return create


def test_function_reports_to_the_terminal_and_the_database_is_unchanged(bare_console, here, study):
    (here / "train_here.py").write_text(
        "def main(config, trial):\n"
        "    assert trial.checkpoint is None\n"
        "    for step in range(3):\n"
        "        trial.report({'loss': config['x'] + step, 'note': 'a'}, checkpoint={'s': step})\n"
    )
    made = study("train_here:main", space={"x": studydb.uniform(0, 1)})
    before = dump(made.database)

    ran = bare_console("try", "tried", "x=0.5")

    assert ran.out.splitlines() == [
        "params  x=0.5",
        "step 1: loss 0.5  note='a'  (a checkpoint, not stored)",
        "step 2: loss 1.5  note='a'  (a checkpoint, not stored)",
        "step 3: loss 2.5  note='a'  (a checkpoint, not stored)",
        "The trial is complete; nothing was stored.",
    ]
    assert dump(made.database) == before


def test_global_random_generator_is_seeded_with_the_seed_of_the_trial(bare_console, here, study):
    (here / "random_here.py").write_text(
        "import random\n"
        "def main(config, trial):\n"
        "    return float(random.random() == random.Random(trial.seed).random())\n"
    )
    study("random_here:main")

    assert "loss 1" in bare_console("try", "tried").out


def test_error_of_the_code_is_printed_with_its_traceback(bare_console, here, study):
    (here / "failing_here.py").write_text("def main(config):\n    raise KeyError('lr')\n")
    study("failing_here:main")

    ran = bare_console("try", "tried", code=1)

    assert "failing_here.py" in ran.err
    assert "KeyError: 'lr'" in ran.err
    assert "trying.py" not in ran.err  # studydb's own frames are left out


def test_drawn_parameters_are_printed_before_the_code_runs(bare_console, here, study):
    (here / "drawn_here.py").write_text("def main(config):\n    raise ValueError(config['x'])\n")
    study("drawn_here:main", space={"x": studydb.uniform(0, 1), "net": {"act": "relu"}})

    ran = bare_console("try", "tried", code=1)

    (line,) = ran.out.splitlines()
    assert f"ValueError: {line.removeprefix('params  x=')}\n" in ran.err


@pytest.mark.parametrize("code", [0, 2])
def test_try_says_that_the_code_called_sys_exit(bare_console, here, study, code):
    (here / f"exiting_{code}.py").write_text(
        f"import sys\ndef main(config):\n    sys.exit({code})\n"
    )
    study(f"exiting_{code}:main")

    ran = bare_console("try", "tried", code=1)

    assert f"The trainable called sys.exit({code}). Return from it" in ran.error
    assert ("If it parses sys.argv" in ran.error) == (code == 2)


def test_stop_rule_ends_a_trial_that_is_tried(bare_console, here, study):
    study(
        "classes:Counting",
        workdir=TRAINABLES,
        space={"folder": str(here), "steps": 9},
        stop=["training_iteration>=2"],
    )

    ran = bare_console("try", "tried")

    assert ran.out.count("step ") == 2


def test_command_runs_with_the_given_parameters(bare_console, here, study):
    (here / "train.sh").write_text('#!/bin/sh\necho "[studydb] {\\"loss\\": $1}"\necho bye\n')
    (here / "train.sh").chmod(0o755)
    study(["./train.sh", "{x}"], space={"x": studydb.uniform(0, 1)})

    ran = bare_console("try", "tried", "x=0.25")

    assert "step 1: loss 0.25" in ran.out


def test_command_that_is_tried_gets_no_credentials(bare_console, here, study, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "secret")
    study(["sh", "-c", "env > env; echo '[studydb] {{\"loss\": 1}}'"])

    bare_console("try", "tried")

    names = {line.partition("=")[0] for line in (here / "env").read_text().splitlines()}
    assert "STUDYDB_CONFIG" in names
    assert not names & {"STUDYDB_STORAGE", "STUDYDB_SIGNING_KEY", "PGPASSWORD"}


def test_command_that_is_tried_leaves_no_process_of_its_group(bare_console, here, study):
    study(["sh", "-c", "sleep 300 & echo '[studydb] {{\"loss\": 1}}'; echo $! > pid"])

    bare_console("try", "tried")

    pid = int((here / "pid").read_text())
    eventually(lambda: start_of(pid) is None, 2.0)


def test_refused_report_is_shown_with_the_line_of_the_code(bare_console, here, study):
    code = "def main(config, trial):\n    trial.report({'loss': 'abc'})\n"
    (here / "reports_text.py").write_text(code)
    study("reports_text:main")

    ran = bare_console("try", "tried", code=1)

    assert "trial.report({'loss': 'abc'})" in ran.err
    assert ran.err.endswith(
        "'loss' at step 1 is 'abc', a str; the study's metric must be a number.\n"
    )


@pytest.mark.parametrize("how", ["yield", "return"])
def test_refused_result_of_a_function_is_shown_in_one_line(bare_console, here, study, how):
    (here / f"{how}s_text.py").write_text(f"def main(config):\n    {how} {{'loss': 'abc'}}\n")
    study(f"{how}s_text:main")

    ran = bare_console("try", "tried", code=1)

    assert ran.err.startswith("studydb: 'loss' at step 1 is 'abc', a str")


@pytest.mark.parametrize(("end", "words"), [("exit 75", "run later"), ("kill -9 $$", "SIGKILL")])
def test_try_says_in_one_line_that_a_command_asked_to_run_later_or_was_killed(
    bare_console, study, end, words
):
    study(["sh", "-c", end])

    ran = bare_console("try", "tried", code=1)

    assert words in ran.error


def test_error_of_a_failed_command_is_one_line_without_a_traceback(bare_console, here, study):
    study(["sh", "-c", "exit 3"])

    ran = bare_console("try", "tried", code=1)

    assert "exited with code 3" in ran.error
    assert "Traceback" not in ran.error


@pytest.mark.parametrize(
    ("words", "cause"),
    [(["y=1"], "'y'"), (["x=7"], "x"), (["x"], "'='"), (["--debugg"], "--debug")],
)
def test_wrong_arguments_of_try_are_refused(bare_console, study, words, cause):
    study(["true"], space={"x": studydb.uniform(0, 1)})

    ran = bare_console("try", "tried", *words, code=2)

    assert cause in ran.error
    assert json.dumps(ran.error).count("\\n") == 1


def test_output_that_fails_during_the_trial_is_not_called_an_error_of_the_code(
    bare_console, here, study, monkeypatch
):
    (here / "reports_here.py").write_text(
        "def main(config, trial):\n    trial.report({'loss': 1})\n    trial.report({'loss': 2})\n"
    )
    study("reports_here:main")
    echo = click.echo

    def on_a_full_disk(line, **options):
        if line.startswith("step 2"):
            raise OSError(errno.ENOSPC, "No space left on device")
        echo(line, **options)

    monkeypatch.setattr(click, "echo", on_a_full_disk)

    ran = bare_console("try", "tried", code=1)

    assert "step 1: loss 1" in ran.out
    assert ran.err.startswith("studydb: The output cannot be written: No space left on device. ")
