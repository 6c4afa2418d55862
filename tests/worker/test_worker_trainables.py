"""What faulty trainables leave in the database and the logs, and where workers find trainables."""

import shutil
from pathlib import Path

import pytest
from fleet.trainables import misbehaving
from fleet.workers import TRAINABLES

import studydb

TRAINABLE_ERROR = "studydb.domain.errors.TrainableError"
INVALID_REPORT = "studydb.domain.errors.InvalidReport"
FAILURES = [
    ("raises", "ValueError", "the learning rate is cursed"),
    (
        "returns_nothing",
        TRAINABLE_ERROR,
        "The trainable ended without reporting 'loss'. Call studydb.report({'loss': …}) after each step, or return the value.",
    ),
    (
        "returns_text",
        TRAINABLE_ERROR,
        "The trainable returned or yielded a str; return a dict of metrics, a number for 'loss', or nothing.",
    ),
    (
        "exits",
        "SystemExit",
        "The trainable called sys.exit('bad data'). Return from it, or raise an error.",
    ),
    (
        "forgets_the_metric",
        INVALID_REPORT,
        "The report at step 2 has no 'loss', the study's metric; it has 'accuracy'. Report 'loss' at each step.",
    ),
    (
        "reports_text",
        INVALID_REPORT,
        "'loss' at step 1 is '0.5', a str; the study's metric must be a number.",
    ),
    (
        "reports_object",
        INVALID_REPORT,
        "Metric 'model' is an object, which JSON cannot hold; report numbers, strings, or lists of them.",
    ),
    (
        "steps_back",
        INVALID_REPORT,
        "'training_iteration' is 3, which is not above 3; steps must rise.",
    ),
    ("exits_hard", "Lost", "The process of the trial exited with code 3."),
    ("segfaults", "Lost", "The process of the trial was killed by SIGSEGV."),
    ("kills_itself", "Lost", "The process of the trial was killed by SIGKILL."),
]


def create_with_trial_for_each(stage, names, **options):
    """Create a study with a trial for each function in `names`; return each trial's number."""
    space = {"function": studydb.choice(names)}
    study = stage.create("misbehaving:named", space=space, num_trials=len(names), **options)
    return {name: study.enqueue({"function": name}) for name in names}


@pytest.mark.slow
@pytest.mark.row("A19", "B12")
def test_failures_of_user_code_are_stored_with_their_attempts(sqlite_stage):
    numbers = create_with_trial_for_each(
        sqlite_stage, [name for name, _, _ in FAILURES], max_losses=0, guard=False
    )

    code = sqlite_stage.run()

    assert code == 3
    for name, kind, message in FAILURES:
        trial, reason = sqlite_stage.trial(numbers[name]), "LOST" if kind == "Lost" else "FAILED"
        (attempt,) = sqlite_stage.attempts(numbers[name])
        assert (trial.state, trial.reason) == ("ERROR", reason)
        assert (attempt.reason, attempt.error_type, attempt.error_message) == (
            reason,
            kind,
            message,
        )


@pytest.mark.slow
@pytest.mark.row("D3")
def test_results_before_an_error_are_stored_and_a_trial_without_a_result_fails(stage):
    n_results = {
        "raises_after_reports": 1000,
        "raises_after_yields": 2,
        "exits_after_a_report": 1,
        "forgets_the_metric": 1,
        "raises": 0,
        "returns_nothing": 0,
    }
    numbers = create_with_trial_for_each(stage, list(n_results), guard=False)
    stage.start()

    for name, n in n_results.items():
        trial = stage.await_state("ERROR", numbers[name])
        (attempt,) = stage.attempts(numbers[name])
        assert (trial.reason, attempt.reason, trial.n_results) == ("FAILED", "FAILED", n)
        assert stage.steps(numbers[name]) == list(range(1, n + 1))
        assert attempt.error_type is not None


def test_value_returned_without_reports_is_the_result_of_step_1(sqlite_stage):
    names = ["returns_number", "returns_dict"]
    numbers = create_with_trial_for_each(sqlite_stage, names)

    code = sqlite_stage.run()

    for trial in map(sqlite_stage.trial, numbers.values()):
        assert (code, trial.state, trial.reason) == (0, "TERMINATED", "COMPLETED")
        assert (trial.last_step, trial.last_value) == (1, 0.25)


@pytest.mark.slow
def test_trial_completes_after_100_mb_of_output_and_its_log_files_stay_within_12_mib(sqlite_stage):
    sqlite_stage.create("misbehaving:floods")

    code = sqlite_stage.run()

    (attempt,) = sqlite_stage.attempts()
    size_bytes = sum(file.stat().st_size for file in Path(attempt.log_dir).iterdir())
    assert (code, sqlite_stage.trial().reason) == (0, "COMPLETED")
    assert size_bytes <= 12 << 20
    assert attempt.log_tail.endswith("the last line")


def test_binary_output_is_stored_as_text(stage):
    stage.create("misbehaving:prints_rubbish")

    code = stage.run()

    (attempt,) = stage.attempts()
    assert (code, attempt.reason, attempt.error_type) == (3, "FAILED", "ValueError")
    assert attempt.error_message == r"a NUL: \x00, a lone surrogate: \ud800"
    assert "café" in attempt.log_tail


@pytest.mark.slow
def test_trial_is_not_lost_if_it_holds_the_gil_longer_than_its_lease(sqlite_stage):
    sqlite_stage.create("misbehaving:holds_the_gil", num_trials=2)

    code = sqlite_stage.run(slots=2, lease=misbehaving.LONG_S / 2)

    ended_s = [float((sqlite_stage.folder / f"done-{number}").read_text()) for number in (0, 1)]
    assert code == 0
    assert [len(sqlite_stage.attempts(number)) for number in (0, 1)] == [1, 1]
    assert [sqlite_stage.trial(number).reason for number in (0, 1)] == ["COMPLETED", "COMPLETED"]
    assert ended_s[0] - ended_s[1] > misbehaving.LONG_S / 2


@pytest.mark.slow
def test_failed_trial_waits_before_its_next_attempt(sqlite_stage):
    stage = sqlite_stage
    stage.create("misbehaving:fails_at_first", num_trials=2, max_failures=1)

    code = stage.run(slots=2)

    first, second = stage.attempts(0)
    assert code == 0
    assert (stage.trial(0).reason, stage.trial(0).failures) == ("COMPLETED", 1)
    assert (stage.trial(1).reason, stage.trial(1).failures) == ("FAILED", 2)
    assert (first.reason, second.reason) == ("FAILED", "COMPLETED")
    assert (second.started_at - first.ended_at).total_seconds() >= 1.0


@pytest.mark.slow
def test_error_about_a_missing_function_names_the_file(sqlite_stage):
    project = sqlite_stage.folder / "project"
    shutil.copytree(TRAINABLES, project)
    sqlite_stage.create("misbehaving:raises", workdir=project)
    (project / "misbehaving.py").write_text("def raised(config):\n    return 0.0\n")

    code = sqlite_stage.run()

    (attempt,) = sqlite_stage.attempts()
    assert (code, attempt.reason) == (1, "PREEMPTED")  # the host is at fault, not the trial
    assert sqlite_stage.trial(0).state == "PENDING"
    assert attempt.error_type == TRAINABLE_ERROR
    assert attempt.error_message.startswith(f"{project}/misbehaving.py has no 'raises'. Did you")


def test_worker_searches_its_workdir_before_the_directory_recorded_in_the_study(sqlite_stage):
    own = sqlite_stage.folder / "elsewhere"
    own.mkdir()
    (own / "misbehaving.py").write_text("def returns_number(config):\n    return 7.0\n")
    sqlite_stage.create("misbehaving:returns_number")

    code = sqlite_stage.run(workdir=own)

    assert (code, sqlite_stage.trial().last_value) == (0, 7.0)
