"""Which checkpoints are kept: the newest, the one before it, and what is pinned."""

import pytest
from harness.arrange import SimulatedWorker, change, new_study, rows

from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.store import checkpoints


@pytest.fixture
def run(database, clock):
    return SimulatedWorker(database, new_study(database)).take()


def saved_at(run, step):
    """A checkpoint's row after its save, and what the save gave up."""
    older = run.save(run.checkpoint(step=step))
    with run.worker.database.begin(write=False) as txn:
        return checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id), older


def kept(run):
    sql = "SELECT step FROM checkpoint WHERE removed_at IS NULL ORDER BY id"
    return [step for (step,) in rows(run.worker.database, sql)]


def test_the_newest_two_checkpoints_are_kept(run):
    given_up = [[older.step for older in saved_at(run, step)[1]] for step in (1, 2, 3, 4)]

    assert given_up == [[], [], [1], [2]]
    assert kept(run) == [3, 4]


def test_expired_inline_checkpoints_lose_their_bytes(run):
    for step in (1, 2, 3):
        saved_at(run, step)

    sql = "SELECT step FROM checkpoint WHERE data IS NOT NULL ORDER BY id"
    assert rows(run.worker.database, sql) == [(2,), (3,)]


def test_pinned_checkpoint_is_kept_until_it_is_unpinned(run):
    saved_at(run, 1)
    change(run.worker.database, "UPDATE checkpoint SET pins = 1")

    for step in (2, 3, 4):
        saved_at(run, step)
    pinned = kept(run)
    change(run.worker.database, "UPDATE checkpoint SET pins = 0")
    saved_at(run, 5)

    assert pinned == [1, 3, 4]
    assert kept(run) == [4, 5]


def test_newest_checkpoint_is_the_last_saved_even_if_its_step_is_lower(run):
    for step in (5, 6, 2):
        newest, _ = saved_at(run, step)

    assert run.trial().checkpoint_id == newest.id
    assert kept(run) == [6, 2]


def test_corrupt_checkpoint_is_replaced_by_the_one_before_it_then_by_none(run):
    first, second = (saved_at(run, step)[0] for step in (1, 2))

    before = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=second)
    last = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=first)

    assert (before.uuid, last) == (first.uuid, None)
    assert run.trial().checkpoint_id is None
    assert kept(run) == []


def test_resent_save_returns_expired_checkpoints_until_their_rows_are_deleted(run):
    for step in (1, 2):
        saved_at(run, step)
    what = run.checkpoint(step=3)
    older = run.save(what)

    again = run.save(what)
    delete_rows(run.worker.database, removed=older)

    assert again == older
    assert run.save(what) == []
    assert rows(run.worker.database, "SELECT count(*) FROM checkpoint") == [(2,)]


def test_corrupt_checkpoint_is_never_replaced_by_an_expired_one(run):
    _, second, third = (saved_at(run, step)[0] for step in (1, 2, 3))

    before = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=third)
    last = mark_corrupt(run.worker.database, lease=run.lease, checkpoint=second)

    assert (before.uuid, last) == (second.uuid, None)
