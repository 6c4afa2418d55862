"""
Neither retention nor a discard removes a checkpoint that a person has pinned.

The last tests read the removed checkpoints whose rows are not deleted yet.
"""

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows, trial_of, unchanged_rows

from studydb.domain.errors import NotFound, UnknownTrial
from studydb.domain.life.states import Reason
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.discard import discard
from studydb.operations.pin import pin, unpin
from studydb.operations.retry import retry
from studydb.operations.unkept_checkpoints import read_removed
from studydb.store import checkpoints


@pytest.fixture
def saved(run):
    """An attempt that has saved checkpoints of the steps 1 and 2."""
    for _ in range(2):
        run.report(0.5)
        run.save()
    return run


def kept(database):
    return [
        step
        for (step,) in rows(
            database, "SELECT step FROM checkpoint WHERE removed_at IS NULL ORDER BY id"
        )
    ]


def save_more(run, n=3):
    for _ in range(n):
        run.report(0.5)
        run.save()


def test_pinned_checkpoint_is_kept_until_the_pin_is_removed(database, study, saved):
    assert pin(database, study, 0, new_request(), step=1) == 1
    save_more(saved)
    pinned = kept(database)
    assert unpin(database, study, 0, new_request()) == [1]
    save_more(saved, 1)

    assert pinned == [1, 4, 5]
    assert kept(database) == [5, 6]


def test_newest_checkpoint_is_pinned_by_default_and_only_once(database, study, saved):
    assert [pin(database, study, 0, new_request()) for _ in range(2)] == [2, 2]

    assert rows(database, "SELECT step, pins FROM checkpoint ORDER BY id") == [(1, 0), (2, 1)]
    assert rows(database, "SELECT reason, trial_id FROM pin") == [("person", None)]
    assert unpin(database, study, 0, new_request(), step=1) == []
    assert unpin(database, study, 0, new_request(), step=2) == [2]
    assert rows(database, "SELECT pins FROM checkpoint ORDER BY id") == [(0,), (0,)]


def test_pins_of_people_and_of_clones_are_removed_independently(database):
    study = new_study(database, num_trials=4, max_losses=0)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.LOST)
    retry(database, study, [0], new_request())
    pin(database, study, 0, new_request())
    assert rows(database, "SELECT pins FROM checkpoint") == [(2,)]

    assert unpin(database, study, 0, new_request()) == [1]
    assert rows(database, "SELECT pins FROM checkpoint") == [(1,)]
    pin(database, study, 0, new_request())
    SimulatedWorker(database, study).claim().finish(0.4)

    assert rows(database, "SELECT pins FROM checkpoint") == [(1,)]
    assert discard(database, study, 0, new_request()) == []
    assert trial_of(database, study, 0).checkpoint_id is not None


def test_step_whose_checkpoint_is_removed_corrupt_or_missing_cannot_be_pinned(
    database, study, saved
):
    save_more(saved, 1)
    with database.begin(write=False) as txn:
        newest = checkpoints.find(txn, checkpoint_id=saved.trial().checkpoint_id)
    mark_corrupt(database, lease=saved.lease, checkpoint=newest)

    for step in (1, 3, 9):
        with (
            unchanged_rows(database),
            pytest.raises(NotFound, match=f"no checkpoint of step {step} "),
        ):
            pin(database, study, 0, new_request(), step=step)
    assert pin(database, study, 0, new_request()) == 2
    with pytest.raises(UnknownTrial):
        pin(database, study, 7, new_request())
    with pytest.raises(UnknownTrial):
        unpin(database, study, 7, new_request())


def test_corrupt_checkpoint_is_not_restored_although_it_is_pinned(database, study, saved):
    pin(database, study, 0, new_request())
    with database.begin(write=False) as txn:
        newest = checkpoints.find(txn, checkpoint_id=saved.trial().checkpoint_id)

    assert mark_corrupt(database, lease=saved.lease, checkpoint=newest).step == 1

    assert unpin(database, study, 0, new_request()) == [2]


def test_resent_request_returns_the_first_answer_and_changes_nothing(database, study, saved):
    first, second = new_request(), new_request()
    assert pin(database, study, 0, first) == 2
    save_more(saved, 1)
    with unchanged_rows(database):
        assert pin(database, study, 0, first) == 2
    assert unpin(database, study, 0, second) == [2]
    with unchanged_rows(database):
        assert unpin(database, study, 0, second) == [2]
        assert pin(database, study, 0, first) == 2


def test_removed_checkpoints_are_read_for_one_study_and_only_for_trials_after_a_number(
    database, study, saved
):
    assert read_removed(database, study, after_number=-1) == ([], None)
    save_more(saved, 2)
    other = SimulatedWorker(database, new_study(database)).take()
    other.report(0.5)
    for _ in range(3):
        other.save()

    page = read_removed(database, study, after_number=-1)

    assert [one.step for one in page.checkpoints] == [1, 2]
    assert {one.trial_uuid for one in page.checkpoints} == {saved.trial().uuid}
    assert read_removed(database, study, after_number=0) == ([], None)


def test_corrupt_checkpoint_is_not_among_the_removed_checkpoints(database, study, saved):
    with database.begin(write=False) as txn:
        newest = checkpoints.find(txn, checkpoint_id=saved.trial().checkpoint_id)
    mark_corrupt(database, lease=saved.lease, checkpoint=newest)

    assert read_removed(database, study, after_number=-1) == ([], None)


def test_pages_of_removed_checkpoints_cover_all_trials(database, monkeypatch):
    monkeypatch.setattr("studydb.operations.unkept_checkpoints.MOST_TRIALS", 2)
    study = new_study(database, num_trials=5)
    worker = SimulatedWorker(database, study)
    for _ in range(5):
        run = worker.take()
        run.report(0.5)
        for _ in range(3):
            run.save()

    seen, after = [], -1
    while after is not None:
        page = read_removed(database, study, after_number=after)
        seen += [one.trial_id for one in page.checkpoints]
        after = page.next_number

    assert len(seen) == len(set(seen)) == 5
