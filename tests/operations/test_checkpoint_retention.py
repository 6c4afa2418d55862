"""A trial keeps its two newest and its pinned checkpoints (`pins` above 0). The others expire."""

from harness.arrange import change, rows

from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.store import checkpoints


def save_at(run, step):
    """Save a checkpoint; return its stored row, and the older checkpoints that expired."""
    expired = run.save(run.checkpoint(step=step))
    with run.worker.database.begin(write=False) as txn:
        return checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id), expired


def kept_steps(run):
    sql = "SELECT step FROM checkpoint WHERE removed_at IS NULL ORDER BY id"
    return [step for (step,) in rows(run.worker.database, sql)]


def test_the_newest_two_checkpoints_are_kept(run):
    expired = [[older.step for older in save_at(run, step)[1]] for step in (1, 2, 3, 4)]

    assert expired == [[], [], [1], [2]]
    assert kept_steps(run) == [3, 4]


def test_bytes_of_an_expired_checkpoint_are_removed_from_the_database(run):
    for step in (1, 2, 3):
        save_at(run, step)

    sql = "SELECT step FROM checkpoint WHERE data IS NOT NULL ORDER BY id"
    assert rows(run.worker.database, sql) == [(2,), (3,)]


def test_pinned_checkpoint_is_kept_until_it_is_unpinned(run):
    save_at(run, 1)
    change(run.worker.database, "UPDATE checkpoint SET pins = 1")

    for step in (2, 3, 4):
        save_at(run, step)
    pinned = kept_steps(run)
    change(run.worker.database, "UPDATE checkpoint SET pins = 0")
    save_at(run, 5)

    assert pinned == [1, 3, 4]
    assert kept_steps(run) == [4, 5]


def test_newest_checkpoint_is_the_last_saved_even_if_its_step_is_lower(run):
    for step in (5, 6, 2):
        newest, _ = save_at(run, step)

    assert run.trial().checkpoint_id == newest.id
    assert kept_steps(run) == [6, 2]


def test_trial_falls_back_from_each_corrupt_checkpoint_to_the_previous_checkpoint(run):
    first, second = (save_at(run, step)[0] for step in (1, 2))

    before = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=second)
    last = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=first)

    assert (before.uuid, last) == (first.uuid, None)
    assert run.trial().checkpoint_id is None
    assert kept_steps(run) == []


def test_resent_save_returns_expired_checkpoints_until_their_rows_are_deleted(run):
    for step in (1, 2):
        save_at(run, step)
    checkpoint = run.checkpoint(step=3)
    expired = run.save(checkpoint)

    again = run.save(checkpoint)
    delete_rows(run.worker.database, removed=expired)

    assert again == expired
    assert run.save(checkpoint) == []
    assert rows(run.worker.database, "SELECT count(*) FROM checkpoint") == [(2,)]


def test_corrupt_checkpoint_is_never_replaced_by_an_expired_checkpoint(run):
    _, second, third = (save_at(run, step)[0] for step in (1, 2, 3))

    before = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=third)
    last = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=second)

    assert (before.uuid, last) == (second.uuid, None)
