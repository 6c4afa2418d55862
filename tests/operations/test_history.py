"""
Each read of a history gives what changed since the last read.

The trials of one configuration (replicates) are one observation, with the mean of their values.
"""

import pytest
from harness.arrange import SimulatedWorker, change, enqueued, new_request, new_study

from studydb.domain.life.states import Mode, Origin, Reason, State
from studydb.domain.space.search_space import Space, loguniform
from studydb.lease.trial_history import History
from studydb.operations import control, history
from studydb.operations.retry import retry


@pytest.fixture
def study(database):
    return new_study(database, num_trials=100)


@pytest.fixture
def worker(database, study):
    return SimulatedWorker(database, study)


@pytest.fixture
def cache(database, study):
    return History(database, study)


def numbers(observations):
    return [one.number for one in observations]


def test_first_read_has_all_trials_in_ascending_order(cache, worker):
    runs = [worker.ask() for _ in range(4)]
    runs[2].finish(0.5)

    seen = cache.changes()

    assert numbers(seen) == [0, 1, 2, 3]
    assert [one.state for one in seen] == [
        State.RUNNING,
        State.RUNNING,
        State.TERMINATED,
        State.RUNNING,
    ]
    assert seen[2].reason is Reason.COMPLETED
    assert (seen[2].values, seen[2].scores, seen[2].last_step) == ((0.5,), (0.5,), 1)
    assert seen[0].values is None
    assert seen[0].origin is Origin.SEARCHER


def test_observed_params_are_floats_if_the_domain_has_floats(database):
    space = Space.read({"net": {"x": loguniform(1.0, 1e22)}})
    study = new_study(database, space=space)
    enqueued(database, study, net={"x": 7.234567890123457e20})

    (seen,) = History(database, study).changes()

    assert repr(seen.params) == "{'net': {'x': 7.234567890123457e+20}}"


@pytest.mark.row("A8")
def test_next_read_has_only_the_trials_that_changed_since_the_last_read(cache, worker):
    runs = [worker.ask() for _ in range(3)]
    cache.changes()

    runs[1].finish(0.25)
    worker.ask()

    assert numbers(cache.changes()) == [1, 3]
    assert cache.changes() == []


def test_ended_trials_are_not_read_again(database, cache, worker):
    for _ in range(3):
        worker.ask().finish(0.5)
    cache.changes()
    sent = []
    database.observer = sent.append

    cache.changes()

    database.observer = None
    # The queries read the last known trial, the numbers of invalidated trials, and later trials.
    assert len([sql for sql in sent if "FROM trial" in sql]) == 3


def test_score_is_the_negated_value_if_the_mode_is_max(database):
    study = new_study(database, mode=Mode.MAX)
    SimulatedWorker(database, study).ask().finish(0.75)

    (seen,) = History(database, study).changes()

    assert (seen.values, seen.scores) == ((0.75,), (-0.75,))


def test_trial_cancelled_before_any_result_has_no_value(database, study, cache):
    number = enqueued(database, study)
    control.stop(database, study, [number], new_request())

    (seen,) = cache.changes()

    assert (seen.state, seen.reason, seen.values) == (State.TERMINATED, Reason.CANCELLED, None)
    assert seen.origin is Origin.ENQUEUED


def test_invalidated_trial_has_no_value(database, cache, worker):
    worker.ask().finish(0.5)
    change(database, "UPDATE trial SET invalidated_at = ended_at")

    (seen,) = cache.changes()

    assert (seen.reason, seen.values, seen.scores) == (Reason.INVALIDATED, None, None)


def test_trial_with_a_changed_config_and_its_clone_have_no_value(database, study, cache, worker):
    number = enqueued(database, study)
    control.resume(database, study, [number], new_request(), changes={"lr": 0.25})
    worker.claim().finish(0.5)
    retry(database, study, [number], new_request())
    worker.claim().finish(0.75)
    worker.ask().finish(1.0)

    seen = cache.changes()

    assert [one.values for one in seen] == [None, None, (1.0,)]
    assert [one.reason for one in seen][:2] == [Reason.INVALIDATED] * 2


def test_many_trials_are_read_in_pages(database, study, cache, worker, monkeypatch):
    monkeypatch.setattr(history, "TRIALS_PER_READ", 2)
    for _ in range(5):
        worker.ask()

    assert numbers(cache.changes()) == [0, 1, 2, 3, 4]
    change(database, "UPDATE trial SET last_value = 0.5")
    assert numbers(cache.changes()) == [0, 1, 2, 3, 4]


def test_replicates_are_one_observation_with_their_mean(database, cache, worker):
    first, second, third = (worker.ask() for _ in range(3))
    worker.ask().finish(9.0)
    change(
        database,
        f"UPDATE trial SET replicate_of = {first.lease.trial_id}, params = "
        f"(SELECT params FROM trial WHERE number = 0) WHERE number IN (1, 2)",
    )
    assert numbers(cache.changes()) == [0, 3]

    first.finish(1.0)
    second.finish(0.5)
    (seen,) = cache.changes()
    assert (seen.number, seen.values, seen.reason) == (0, (0.75,), None)

    third.finish(0.0)
    (seen,) = cache.changes()
    assert (seen.values, seen.scores, seen.reason) == ((0.5,), (0.5,), Reason.COMPLETED)


def test_history_keeps_the_hash_of_the_params_of_each_trial(database, study, cache):
    enqueued(database, study, lr=0.5)
    cache.changes()
    enqueued(database, study, lr=0.25)
    cache.changes()

    assert len(cache.hashes) == 2


@pytest.mark.parametrize(
    "restore",
    [
        "UPDATE trial SET uuid = '00000000-0000-4000-8000-000000000000' WHERE number = 2",
        "UPDATE trial SET number = 7 WHERE number = 2",
    ],
)
def test_restored_database_is_noticed(database, cache, worker, restore):
    for _ in range(3):
        worker.ask()
    cache.changes()
    change(database, restore)

    assert cache.changes() is None
