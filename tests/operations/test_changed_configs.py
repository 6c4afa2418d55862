"""A person resumes a trial with other values of parameters; all later attempts get these values."""

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    rows,
    trial_of,
    unchanged_rows,
)

from studydb.domain.errors import InvalidSpec, NotAllowed
from studydb.domain.life.states import Reason, State
from studydb.domain.space.search_space import Space, choice, loguniform, randint
from studydb.operations import control
from studydb.operations.reads import trial_attempts

SPACE = Space.read(
    {
        "lr": loguniform(1e-4, 1.0),
        "net": {"width": randint(1, 9)},
        "act": choice([[1, 2], 3]),
        "k": 7,
    }
)
PARAMS = {"lr": 0.5, "net": {"width": 2}, "act": [1, 2]}


@pytest.fixture
def study(database):
    return new_study(database, space=SPACE)


@pytest.fixture
def paused(database, study):
    """The number of a PAUSED trial that has had one attempt."""
    number = enqueued(database, study, **PARAMS)
    run = SimulatedWorker(database, study).take()
    control.pause(database, study, [number], new_request())
    run.finish(0.4, outcome=Reason.PREEMPTED)
    return number


def resume(database, study, number, request=None, **changes):
    control.resume(database, study, [number], request or new_request(), changes=changes)


@pytest.mark.row("C4")
def test_later_attempts_get_the_changed_values_and_each_attempt_keeps_its_config(
    database, study, paused
):
    resume(database, study, paused, lr=0.01)
    worker = SimulatedWorker(database, study)
    worker.take().finish(outcome=Reason.PREEMPTED)
    run = worker.take()

    assert run.claimed.params == PARAMS
    assert run.claimed.config == {**PARAMS, "lr": 0.01, "k": 7}
    configs = [one.config for one in trial_attempts(database, study, paused)]
    assert [config["lr"] for config in configs] == [0.5, 0.01, 0.01]
    trial = trial_of(database, study, paused)
    assert (trial.params, trial.changed) == (PARAMS, {"lr": 0.01})


def test_changes_add_up_and_a_value_that_equals_the_sampled_value_is_no_change(
    database, study, paused
):
    resume(database, study, paused, lr=0.01)
    control.pause(database, study, [paused], new_request())
    resume(database, study, paused, net={"width": 5}, act=3)
    assert trial_of(database, study, paused).changed == {"lr": 0.01, "net/width": 5, "act": 3}

    resume(database, study, paused, **{"net/width": 2, "lr": 0.5, "act": [1, 2]})

    trial = trial_of(database, study, paused)
    assert (trial.state, trial.changed) == (State.PENDING, {})
    assert trial.config == {**PARAMS, "k": 7}


def test_true_is_another_value_than_1(database):
    study = new_study(database, space=Space.read({"flag": choice([1, True, [0], [False]])}))
    number = enqueued(database, study, flag=1)
    worker = SimulatedWorker(database, study)

    resume(database, study, number, flag=True)
    first = worker.take()
    first.finish(outcome=Reason.PREEMPTED)

    assert trial_of(database, study, number).changed == {"flag": True}
    assert first.claimed.config == {"flag": True}
    assert first.claimed.config["flag"] is True


def test_running_and_ended_trials_are_not_changed(database, study):
    run = SimulatedWorker(database, study).take()
    with (
        unchanged_rows(database),
        pytest.raises(NotAllowed, match=r"Pause the trial first: `studydb"),
    ):
        resume(database, study, 0, lr=0.01)
    run.finish(0.5)

    with unchanged_rows(database), pytest.raises(NotAllowed, match="has ended"):
        resume(database, study, 0, lr=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 2.0}, "'lr' is 2.0, which is not in"),
        ({"rl": 0.1}, "no parameter 'rl'"),
        ({"k": 8}, "'k' is the constant 7"),
    ],
)
def test_change_outside_the_space_is_refused(database, study, paused, changes, message):
    with unchanged_rows(database), pytest.raises(InvalidSpec, match=message):
        resume(database, study, paused, **changes)


def test_change_of_several_trials_is_refused_if_one_of_them_runs(database, study, paused):
    SimulatedWorker(database, study).ask()
    with unchanged_rows(database), pytest.raises(NotAllowed):
        control.resume(database, study, [paused, 1], new_request(), changes={"lr": 0.01})


def test_trial_that_an_earlier_studydb_stored_without_a_config_can_be_changed(
    database, study, paused
):
    with database.begin() as txn:
        txn.raw("UPDATE trial SET config = NULL")

    resume(database, study, paused, lr=0.01)

    assert SimulatedWorker(database, study).claim().claimed.config["lr"] == 0.01


def test_row_that_does_not_fit_the_space_is_not_changed(database, study, paused):
    with database.begin() as txn:
        txn.raw("""UPDATE trial SET params = '{"lr": 7}'""")

    with pytest.raises(InvalidSpec, match="The trial's row does not fit the space"):
        resume(database, study, paused, lr=0.01)


def test_duplicate_request_does_not_undo_a_later_change(database, study, paused):
    first = new_request()
    resume(database, study, paused, first, lr=0.01)
    resume(database, study, paused, lr=0.1)

    resume(database, study, paused, first, lr=0.01)

    assert trial_of(database, study, paused).changed == {"lr": 0.1}
    data = rows(database, "SELECT count(*) FROM event WHERE kind = 'resumed'")
    assert data == [(2,)]
