"""A zombie changes nothing, whichever operation it tries; and each part of the fence is why."""

import pytest
import sqlalchemy as sa
from harness.arrange import (
    SimulatedWorker,
    change,
    dump,
    enqueued,
    new_study,
    persist,
    recover_after_expiry,
    token,
)

from studydb.db import Prepared
from studydb.db.dialect import is_listed
from studydb.db.schema import is_still, trial
from studydb.domain.errors import LeaseLost
from studydb.domain.life.states import Reason, State
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.record_event import record_event
from studydb.operations.renew import renew
from studydb.store import checkpoints, leases


def try_report(run, saved):
    run.report(0.1)


def try_save(run, saved):
    run.save(run.checkpoint(step=99))


def try_finish(run, saved):
    run.finish(0.1)


def try_fail(run, saved):
    run.finish(outcome=Reason.FAILED)


def try_release(run, saved):
    run.finish(0.1, outcome=Reason.PREEMPTED)


def try_mark_corrupt(run, saved):
    mark_corrupt(run.worker.database, lease=run.lease, checkpoint=saved)


def try_tell(run, saved):
    record_event(run.worker.database, lease=run.lease, kind="disk full", data={})


def try_renew(run, saved):
    renewal = renew(run.worker.database, worker_id=run.worker.id, held=[run.lease])
    if run.lease.token not in renewal.held:
        raise LeaseLost(number=run.lease.number, attempt=run.lease.attempt)


FENCED = [try_report, try_save, try_finish, try_fail, try_release, try_mark_corrupt, try_tell]
WRITES = [*FENCED, try_renew]


def taken_by_another(clock, run):
    database, study = run.worker.database, run.worker.study
    assert recover_after_expiry(clock, database, study) == 1
    successor = SimulatedWorker(database, study).take()
    assert successor.lease.trial_id == run.lease.trial_id
    successor.report(0.7)
    return successor


def given_the_same_number_twice(clock, run):
    """A restored database or a failover hands out the attempt number again, to somebody else."""
    another = token()
    change_row(run, "trial", "id", f"token = '{another}'")
    change_row(run, "attempt", "trial_id", f"token = '{another}'")


def exploited(clock, run):
    """The next attempt goes on under the same lease."""
    change_row(run, "trial", "id", "attempt = attempt + 1")


def change_row(run, table, key, values):
    statement = f"UPDATE {table} SET {values} WHERE {key} = {run.lease.trial_id}"
    change(run.worker.database, statement)


def taken_and_waiting(clock, run):
    assert recover_after_expiry(clock, run.worker.database, run.worker.study) == 1


def ended(clock, run):
    taken_by_another(clock, run).finish(0.6)


FATES = [taken_by_another, given_the_same_number_twice, taken_and_waiting, ended]


def held_attempt(database):
    """An attempt that has reported and saved, before its fate; and its checkpoint."""
    study = new_study(database)
    enqueued(database, study)
    run = SimulatedWorker(database, study).claim()
    run.report(0.9)
    run.save()
    with database.begin(write=False) as txn:
        saved = checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id)
    return run, saved


def check_that_nothing_changes(write, run, saved):
    """What promise 1 says of a zombie's write."""
    before = dump(run.worker.database, without=["worker"])  # a renewal says that its process lives
    with pytest.raises(LeaseLost):
        persist(lambda: write(run, saved))
    assert dump(run.worker.database, without=["worker"]) == before


@pytest.mark.parametrize("fate", FATES)
def test_zombie_changes_nothing(database, clock, subtests, fate):
    for write in WRITES:
        zombie = held_attempt(database)
        fate(clock, zombie[0])

        with subtests.test(write.__name__):
            check_that_nothing_changes(write, *zombie)


def test_earlier_attempt_under_the_same_lease_changes_nothing(database, clock, subtests):
    for write in FENCED:
        zombie = held_attempt(database)
        exploited(clock, zombie[0])

        with subtests.test(write.__name__):
            check_that_nothing_changes(write, *zombie)


def test_writes_of_the_holder_are_accepted(database, clock, subtests):
    for write in WRITES:
        run, saved = held_attempt(database)
        before = dump(database, without=["worker"])
        clock.advance(1)

        with subtests.test(write.__name__):
            write(run, saved)

            assert dump(database, without=["worker"]) != before


# Without a part of the fence the checks above fail. `state` alone can't be missed: a CHECK lets only
# RUNNING rows have a token. It takes both to let a zombie write to a trial that waits.
@pytest.mark.parametrize(
    ("parts", "fate"),
    [
        (("token",), given_the_same_number_twice),
        (("attempt",), exploited),
        (("state", "token"), taken_and_waiting),
        (("attempt", "token"), taken_by_another),
    ],
    ids=["token", "attempt", "state and token", "attempt and token"],
)
def test_zombie_can_write_if_a_part_of_the_fence_is_missing(database, clock, subtests, parts, fate):
    for write in FENCED:
        zombie = held_attempt(database)
        fate(clock, zombie[0])

        with subtests.test(write.__name__), pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "HOLD", hold_without(*parts))
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                check_that_nothing_changes(write, *zombie)


def test_renewal_needs_the_token(database, clock, monkeypatch):
    zombie = held_attempt(database)
    taken_by_another(clock, zombie[0])
    by_id_alone = (
        sa.update(trial)
        .where(is_listed(trial.c.id, "ids"), is_still(State.RUNNING))
        .values(leases.RENEWED)
        .returning(*leases.RENEW.statement.exported_columns)
    )

    monkeypatch.setattr(leases, "RENEW", Prepared(by_id_alone))

    with pytest.raises(KeyError):  # an answer for somebody else's lease
        check_that_nothing_changes(try_renew, *zombie)


def hold_without(*parts):
    fence = [part for part in leases.FENCE if part.left.name not in parts]
    assert len(fence) == len(leases.FENCE) - len(parts)
    return Prepared(sa.select(*leases.HELD).where(*fence).with_for_update(key_share=True, of=trial))
