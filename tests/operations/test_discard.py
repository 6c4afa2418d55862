"""The checkpoints of an ended trial are discarded, except pinned and corrupt checkpoints."""

import pytest
from harness.arrange import (
    SimulatedWorker,
    new_request,
    new_study,
    rows,
    trial_of,
    unchanged_rows,
)

from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.life.states import Reason
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.discard import discard
from studydb.operations.retry import retry


@pytest.fixture
def study(database):
    return new_study(database, num_trials=4, max_losses=0)


@pytest.fixture
def ended(database, study):
    """The number of a trial in ERROR with checkpoints of steps 1 and 2."""
    run = saved(SimulatedWorker(database, study).take(), 2)
    run.finish(outcome=Reason.LOST)
    return run.lease.number


def saved(run, n):
    for _ in range(n):
        run.report(0.5)
        run.save()
    return run


def kept(database):
    found = rows(database, "SELECT trial_id, step FROM checkpoint WHERE removed_at IS NULL")
    return sorted(found)


def discarded(database, study, number=0):
    return [one.step for one in discard(database, study, number, new_request())]


def test_discarded_checkpoints_have_no_bytes_and_are_not_restored(database, study, ended):
    assert discarded(database, study) == [1, 2]

    assert kept(database) == []
    assert rows(database, "SELECT count(*) FROM checkpoint WHERE data IS NOT NULL") == [(0,)]
    assert trial_of(database, study, 0).checkpoint_id is None
    retry(database, study, [0], new_request())
    assert SimulatedWorker(database, study).claim().claimed.checkpoint is None


def test_checkpoint_pinned_for_a_clone_is_kept_until_the_clone_has_ended(database, study, ended):
    retry(database, study, [0], new_request())

    assert discarded(database, study) == [1]
    clone = SimulatedWorker(database, study).claim()
    assert (clone.claimed.checkpoint.step, trial_of(database, study, 0).checkpoint_id) == (2, 2)
    clone.finish(0.4)

    assert discarded(database, study) == [1, 2]
    assert kept(database) == []


def test_discarding_a_clone_keeps_the_checkpoints_of_its_parent(database, study, ended):
    retry(database, study, [0], new_request())
    saved(SimulatedWorker(database, study).claim(), 1).finish(0.4)

    assert discarded(database, study, 1) == [3]

    assert [step for _, step in kept(database)] == [1, 2]


def test_corrupt_checkpoint_keeps_its_row_as_evidence(database, study, ended):
    retry(database, study, [0], new_request())
    clone = SimulatedWorker(database, study).claim()
    mark_corrupt(database, lease=clone.lease, checkpoint=clone.claimed.checkpoint)
    clone.finish(0.4)

    assert discarded(database, study) == [1]


def test_trial_that_has_not_ended_or_does_not_exist_is_refused(database, study):
    saved(SimulatedWorker(database, study).take(), 1)

    with unchanged_rows(database):
        with pytest.raises(NotAllowed, match=r"Trial 0 of .* is RUNNING, so its checkpoints"):
            discarded(database, study)
        with pytest.raises(UnknownTrial):
            discarded(database, study, 7)


def test_later_request_returns_removed_checkpoints_until_their_rows_are_deleted(
    database, study, ended
):
    request = new_request()
    removed = discard(database, study, ended, request)

    with unchanged_rows(database):
        assert discard(database, study, ended, request) == removed
    assert discarded(database, study) == [1, 2]
    delete_rows(database, removed=removed)
    assert discarded(database, study) == []
