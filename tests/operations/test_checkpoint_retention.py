"""
A trial keeps its two newest checkpoints and its pinned checkpoints (`pins` above 0).

The study's policy (`Keep`) may keep more.
"""

import json

from harness.arrange import change, new_request, rows
from harness.settings_requests import set_retention

from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.retention import Keep
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.create import load
from studydb.operations.refresh import refreshed
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


def test_policy_keeps_the_best_and_each_nth_checkpoint_besides_the_newest_two(run):
    keep = Keep(best=1, every=4)
    expired = []
    for value in (0.5, 0.1, 0.3, 0.4, 0.05, 0.6, 0.7, 0.8):
        run.report(value)
        expired.append([older.step for older in run.save(keep=keep)])

    assert expired == [[], [], [1], [], [2, 3], [], [], [6]]
    assert kept_steps(run) == [4, 5, 7, 8]
    sql = "SELECT step FROM checkpoint WHERE data IS NOT NULL ORDER BY id"
    assert rows(run.worker.database, sql) == [(4,), (5,), (7,), (8,)]


def test_policy_keeps_a_pinned_checkpoint(run):
    save_at(run, 1)
    change(run.worker.database, "UPDATE checkpoint SET pins = 1")

    for step in (2, 3, 4, 5):
        run.save(run.checkpoint(step=step), keep=Keep(last=3))
    pinned = kept_steps(run)
    change(run.worker.database, "UPDATE checkpoint SET pins = 0")
    run.save(run.checkpoint(step=6), keep=Keep(last=3))

    assert pinned == [1, 3, 4, 5]
    assert kept_steps(run) == [4, 5, 6]


def test_resent_save_by_a_policy_returns_expired_checkpoints(run):
    for step in (1, 2, 3):
        run.save(run.checkpoint(step=step), keep=Keep(last=3))
    checkpoint = run.checkpoint(step=4)
    expired = run.save(checkpoint, keep=Keep(last=3))

    assert [one.step for one in expired] == [1]
    assert run.save(checkpoint, keep=Keep(last=3)) == expired


def test_refreshed_study_has_the_changed_policy_and_the_settings_that_were_not_changed(
    database, study, run
):
    assert refreshed(database, study).keep == Keep()
    ((before,),) = rows(database, f"SELECT settings FROM study WHERE id = {study.id}")
    set_retention(database, study, Keep(best=2), new_request())

    assert refreshed(database, study).keep == Keep(best=2)
    assert load(database, study.name).keep == Keep(best=2)
    ((after,),) = rows(database, f"SELECT settings FROM study WHERE id = {study.id}")
    assert as_dict(before)
    assert as_dict(after) == {**as_dict(before), "keep": Keep(best=2).to_json()}


def as_dict(value):
    """Return JSON as a dict, {} for NULL; PostgreSQL's driver parses JSON, SQLite returns text."""
    return json.loads(value) if isinstance(value, str) else value or {}


def test_resent_change_of_the_policy_changes_nothing_and_is_recorded_once(database, study):
    first = new_request()
    set_retention(database, study, Keep(best=2), first)
    set_retention(database, study, Keep(best=3), new_request())

    set_retention(database, study, Keep(best=2), first)

    assert load(database, study.name).keep == Keep(best=3)
    recorded = f"SELECT count(*) FROM event WHERE kind = '{EventKind.RETENTION_SET}'"
    assert rows(database, recorded) == [(2,)]
