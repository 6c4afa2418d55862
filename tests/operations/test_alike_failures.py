"""
A study pauses itself at a failure if five trials have failed alike and no trial has ever reported.

Failures from before the study was last resumed do not count.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.arrange import SimulatedWorker, change, end_back_offs, new_request, new_study, rows

from studydb.domain.failures import Failure
from studydb.domain.life.alike_failures import MAX_ALIKE, fingerprint
from studydb.domain.life.states import Reason, State, Status
from studydb.operations import control
from studydb.operations.failing import describe_failure, last_error
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress

TYPO = Failure("KeyError", "'learning_rate'", '  File "train.py", line 7, in train\n')


def fail(worker, failure=TYPO, n=1, values=()):
    for _ in range(n):
        worker.take().finish(*values, outcome=Reason.FAILED, failure=failure)


def resume(database, study):
    control.set_status(database, study, Status.RUNNING, new_request())


@pytest.fixture
def study(database):
    return new_study(database, num_trials=200)


def test_study_pauses_itself_at_the_fifth_alike_failure_and_gives_the_reason(
    database, study, worker
):
    fail(worker, n=MAX_ALIKE - 1)
    before = read_progress(database, study)

    fail(worker)

    after = read_progress(database, study)
    assert (before.status, before.pause_reason) == (Status.RUNNING, None)
    assert (after.status, after.is_done, after.has_failed) == (Status.PAUSED, True, True)
    assert "5 trials failed alike" in after.pause_reason
    assert "KeyError: 'learning_rate'" in after.pause_reason
    assert worker.ask() is None
    (event,) = rows(database, "SELECT kind FROM event WHERE actor = 'guard'")
    assert event == ("study paused",)


def test_concurrent_alike_failures_are_all_counted(database, study, worker):
    runs = [worker.take() for _ in range(MAX_ALIKE)]

    with ThreadPoolExecutor(MAX_ALIKE) as pool:
        ends = [pool.submit(run.finish, outcome=Reason.FAILED, failure=TYPO) for run in runs]
        for end in ends:
            end.result()

    assert read_progress(database, study).pause_reason is not None


@pytest.mark.parametrize(
    "different",
    [
        Failure("ValueError", TYPO.message, TYPO.traceback),
        Failure(TYPO.type, TYPO.message, '  File "train.py", line 8, in train\n'),
    ],
)
def test_failures_of_another_type_or_line_are_not_alike(database, study, worker, different):
    fail(worker, n=MAX_ALIKE - 1)
    fail(worker, different, n=MAX_ALIKE - 1)

    assert read_progress(database, study).status is Status.RUNNING


@pytest.mark.parametrize("number", ["0.25", "17", "-3", "+0.5", ".5", "1e-05", "-2.5E+10", "1e3"])
def test_fingerprint_without_a_traceback_has_0_for_each_number_of_the_message(number):
    failure = Failure("Error", f"lr of {number} in [{number}, {number}] is not {number}.")

    assert fingerprint(failure) == "Error: lr of 0 in [0, 0] is not 0."


def test_fingerprints_without_a_traceback_differ_if_the_words_differ():
    texts = ["lr of 0.25 is too large", "lr of 17 is too large", "no lr"]
    first, second, third = (fingerprint(Failure("Error", text)) for text in texts)

    assert first == second
    assert third != second


def test_study_does_not_pause_itself_if_one_trial_has_reported(database, study, worker):
    worker.take().finish(0.5)

    fail(worker, n=2 * MAX_ALIKE)

    assert read_progress(database, study).status is Status.RUNNING


def test_study_does_not_pause_itself_if_its_failing_trials_have_reported(database, study, worker):
    fail(worker, n=2 * MAX_ALIKE, values=(0.5,))

    assert read_progress(database, study).status is Status.RUNNING


def test_explanation_of_the_pause_says_how_a_study_is_created_without_the_guard(
    database, study, worker
):
    fail(worker, n=MAX_ALIKE)

    text = describe_failure(database, study, read_progress(database, study))

    assert "--no-guard or guard=False at a study's creation prevents such a pause" in text


def test_failures_of_one_trial_count_once(database):
    study = new_study(database, max_failures=-1, num_trials=1)
    worker = SimulatedWorker(database, study)
    for _ in range(2 * MAX_ALIKE):
        run = worker.take()
        run.finish(outcome=Reason.FAILED, failure=TYPO)
        end_back_offs(database)

    assert read_progress(database, study).status is Status.RUNNING


@pytest.mark.parametrize(
    ("overrides", "status"),
    [({"max_failures": -1}, Status.PAUSED), ({"guard": False}, Status.RUNNING)],
)
def test_study_pauses_itself_despite_unlimited_failures_but_not_if_its_guard_is_off(
    database, overrides, status
):
    study = new_study(database, num_trials=200, **overrides)

    fail(SimulatedWorker(database, study), n=MAX_ALIKE)

    assert read_progress(database, study).status is status


def test_failures_before_the_study_was_resumed_do_not_count(database, study, worker):
    fail(worker, n=MAX_ALIKE)
    resume(database, study)
    fail(worker, n=MAX_ALIKE - 1)
    resumed = read_progress(database, study)

    fail(worker)

    assert (resumed.status, resumed.pause_reason) == (Status.RUNNING, None)
    assert read_progress(database, study).pause_reason is not None


def test_study_that_pauses_itself_does_not_stop_its_running_trials(database, study, worker):
    runs = [worker.take() for _ in range(3)]
    fail(worker, n=MAX_ALIKE)

    verdicts = [runs[0].report(0.5).verdict, *worker.renew(runs[1]).held.values()]
    for run in runs[:2]:
        run.finish(0.4)
    runs[2].finish(outcome=Reason.PREEMPTED)
    recover(database, study)

    assert verdicts == [None, None]
    assert [run.trial().state for run in runs] == [State.TERMINATED] * 2 + [State.PENDING]
    assert read_progress(database, study).counts.running == 0


def test_pause_by_a_person_replaces_the_pause_by_the_study_itself(database, study, worker):
    fail(worker, n=MAX_ALIKE)

    control.set_status(database, study, Status.PAUSED, new_request())

    progress = read_progress(database, study)
    assert (progress.status, progress.pause_reason) == (Status.PAUSED, None)
    assert not progress.is_done


def test_stopped_study_does_not_pause_itself(database, study, worker):
    runs = [worker.take() for _ in range(MAX_ALIKE)]
    control.set_status(database, study, Status.STOPPED, new_request())

    for run in runs:
        run.finish(outcome=Reason.FAILED, failure=TYPO)

    assert read_progress(database, study).status is Status.STOPPED


def test_last_error_is_found_although_500_promotions_have_followed(database, study, worker):
    fail(worker)
    (at,) = rows(database, "SELECT max(at) FROM event")[0]
    promoted = ", ".join([f"({study.id}, 'promoted', 'scheduler', '{at}')"] * 500)

    change(database, f"INSERT INTO event (study_id, kind, actor, at) VALUES {promoted}")

    assert last_error(database, study).number == 0


@pytest.mark.parametrize("data", ["[1]", '{"message": [1], "fingerprint": {}}', '"text"', "7"])
def test_events_with_unexpected_data_change_neither_the_pause_nor_the_last_error(
    database, study, worker, data
):
    fail(worker)
    trial, at = rows(database, "SELECT trial_id, at FROM event WHERE kind = 'failed'")[0]
    for kind in ("failed", "lost"):
        change(
            database,
            "INSERT INTO event (study_id, trial_id, attempt, kind, actor, data, at) "
            f"VALUES ({study.id}, {trial}, 1, '{kind}', 'x', '{data}', '{at}')",
        )
    assert last_error(database, study).number == 0

    fail(worker, n=MAX_ALIKE - 1)

    assert read_progress(database, study).status is Status.PAUSED
