"""
A quota removes the oldest checkpoints.

It removes neither pinned checkpoints nor the newest checkpoint of a trial that has not ended.
"""

import pytest
from harness.arrange import SimulatedWorker, change, new_request, new_study, rows, run_together
from harness.settings_requests import set_retention
from msgspec import structs

from studydb.domain.errors import CheckpointError
from studydb.domain.life.retention import Keep
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.discard import discard
from studydb.operations.overview import read_overview
from studydb.operations.pin import pin
from studydb.operations.quota import recount
from studydb.operations.restore import newest
from studydb.operations.unkept_checkpoints import remove_unkept
from studydb.store import checkpoints

KEEP = Keep(last=9, quota=10)


@pytest.fixture
def study(database):
    return new_study(database, keep=KEEP)


def save(run, size_bytes, *, step=None):
    """Save a checkpoint; return the trial id of each checkpoint that the save removed."""
    what = structs.replace(run.checkpoint(step=step), size_bytes=size_bytes)
    return [one.trial_id for one in run.save(what, KEEP)]


def kept(database):
    sql = "SELECT trial_id, size_bytes FROM checkpoint WHERE removed_at IS NULL ORDER BY id"
    return rows(database, sql)


def counted(database):
    ((stored, total),) = rows(
        database,
        "SELECT checkpoint_bytes, (SELECT sum(size_bytes) FROM checkpoint WHERE removed_at IS NULL)"
        " FROM study",
    )
    assert stored == total
    return stored


def events(database, kind="quota reached"):
    return rows(database, f"SELECT data FROM event WHERE kind = '{kind}' ORDER BY id")


def test_oldest_checkpoints_are_removed_whichever_trials_saved_them(database, worker):
    first, second = worker.take(), worker.take()
    for run, size_bytes in ((first, 3), (second, 3), (first, 2)):
        save(run, size_bytes)

    removed = save(second, 4)

    a, b = first.lease.trial_id, second.lease.trial_id
    assert removed == [a]
    assert kept(database) == [(b, 3), (a, 2), (b, 4)]
    assert counted(database) == 9
    assert len(events(database)) == 1


def test_newest_checkpoint_of_a_trial_that_has_not_ended_is_kept(database, worker):
    first, second = worker.take(), worker.take()
    save(first, 6)
    save(second, 2)
    save(second, 2)

    removed = save(second, 3)

    a, b = first.lease.trial_id, second.lease.trial_id
    assert removed == [b, b]
    assert kept(database) == [(a, 6), (b, 3)]


def test_even_the_last_checkpoint_of_an_ended_trial_is_removed(database, worker, study):
    first, second = worker.take(), worker.take()
    save(first, 6)
    first.finish(0.5)

    assert save(second, 6) == [first.lease.trial_id]
    assert newest(database, trial=first.trial(), study_id=study.id) is None


def test_save_is_refused_if_only_newest_checkpoints_of_trials_that_have_not_ended_are_left(worker):
    first, second = worker.take(), worker.take()
    save(first, 6)

    with pytest.raises(CheckpointError, match="does not fit into the quota of 10"):
        save(second, 6)


def test_ended_trial_falls_back_to_its_older_pinned_checkpoint(database, worker, study):
    first, second = worker.take(), worker.take()
    save(first, 2, step=1)
    save(first, 3, step=2)
    first.finish(0.5)
    pin(database, study, first.lease.number, new_request(), step=1)

    save(second, 8)

    found = newest(database, trial=first.trial(), study_id=study.id)
    assert found.row.step == 1
    assert [size for _, size in kept(database)] == [2, 8]
    assert counted(database) == 10


def test_refused_save_changes_nothing_and_says_what_to_type(database, worker):
    run = worker.take()
    save(run, 4)
    before = kept(database)

    with pytest.raises(CheckpointError, match=r"studydb set .* keep=") as refusal:
        save(run, 11)

    assert "Training continues" in str(refusal.value)
    assert (kept(database), counted(database), events(database)) == (before, 4, [])
    assert run.trial().checkpoint_id is not None


def test_bytes_of_removed_checkpoints_leave_the_database(database, worker):
    run = worker.take()
    for _ in range(3):
        save(run, 4)

    assert rows(database, "SELECT count(*) FROM checkpoint WHERE data IS NOT NULL") == [(2,)]


def test_sum_is_right_after_retention_corruption_and_a_discard(database, study, worker):
    run = worker.take()
    for step in (1, 2, 3):
        run.save(structs.replace(run.checkpoint(step=step), size_bytes=2), Keep(quota=10))
    after_retention = counted(database)
    with database.begin(write=False) as txn:
        found = checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id)
    for _ in range(2):
        mark_corrupt(database, lease=run.lease, checkpoint=found)
    after_corruption = counted(database)
    run.finish(0.5)
    discard(database, study, run.lease.number, new_request())

    assert (after_retention, after_corruption) == (4, 2)
    assert rows(database, "SELECT checkpoint_bytes FROM study") == [(0,)]


def test_sum_is_right_after_unkept_checkpoints_are_removed(database, study, worker):
    run = worker.take()
    for _ in range(4):
        save(run, 2)
    set_retention(database, study, Keep(quota=10), new_request())

    remove_unkept(database, study, run.lease.number)

    assert counted(database) == 4


def test_resent_save_returns_the_checkpoints_that_the_quota_has_removed(worker):
    first, second = worker.take(), worker.take()
    save(first, 6)
    first.finish(0.5)
    what = structs.replace(second.checkpoint(step=1), size_bytes=6)

    sent = [[one.uuid for one in second.save(what, KEEP)] for _ in range(2)]

    assert len(sent[0]) == 1
    assert sent[0] == sent[1]


def test_saves_at_the_same_time_stay_within_the_quota(database, study):
    runs = [SimulatedWorker(database, study).take() for _ in range(4)]
    for run in runs:
        save(run, 1)

    def work(run):
        for step in range(2, 8):
            try:
                save(run, 2, step=step)
            except CheckpointError:
                continue
            total = rows(database, "SELECT checkpoint_bytes FROM study")
            assert total[0][0] <= 10

    run_together([lambda run=run: work(run) for run in runs])

    assert counted(database) <= 10
    newest_kept = {run.trial().checkpoint_id for run in runs}
    kept_ids = {
        one for (one,) in rows(database, "SELECT id FROM checkpoint WHERE removed_at IS NULL")
    }
    assert newest_kept <= kept_ids


def test_quota_that_is_set_later_counts_what_is_kept_and_holds_for_running_attempts(database):
    study = new_study(database, keep=Keep(last=9))
    run = SimulatedWorker(database, study).take()
    for step in (1, 2, 3):
        run.save(structs.replace(run.checkpoint(step=step), size_bytes=4), study.keep)
    uncounted = rows(database, "SELECT checkpoint_bytes FROM study")

    set_retention(database, study, KEEP, new_request())
    set_at = counted(database)
    run.save(structs.replace(run.checkpoint(step=4), size_bytes=4), study.keep)

    assert (uncounted, set_at) == ([(None,)], 12)
    assert counted(database) == 8
    set_retention(database, study, Keep(), new_request())
    assert rows(database, "SELECT checkpoint_bytes FROM study") == [(None,)]


def test_recount_repairs_a_wrong_sum(database, study, worker):
    save(worker.take(), 4)
    change(database, "UPDATE study SET checkpoint_bytes = 99")

    recount(database, study)

    assert counted(database) == 4


def test_recount_of_a_study_without_a_quota_counts_nothing(database):
    recount(database, new_study(database))

    assert rows(database, "SELECT checkpoint_bytes FROM study") == [(None,)]


def test_status_says_how_much_of_the_quota_is_used(database, study, worker):
    save(worker.take(), 4)

    assert read_overview(database, study).limits == ["checkpoints 4 B of 10 B"]
