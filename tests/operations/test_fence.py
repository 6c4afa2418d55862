"""A zombie (an attempt without its lease) changes nothing unless parts of the fence are removed."""

import pytest
import sqlalchemy as sa
from harness.arrange import (
    SimulatedWorker,
    change,
    dump,
    enqueued,
    new_study,
    recover_after_expiry,
    retry_while_busy,
    token,
    unchanged_rows,
)

from studydb.db import Prepared
from studydb.db.dialect import is_listed
from studydb.db.schema import is_still, trial
from studydb.domain.errors import LeaseLost
from studydb.domain.life.states import Reason, State
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.record_event import record_event
from studydb.store import checkpoints, leases


def renew(run, saved):
    if run.lease.token not in run.worker.renew(run).held:
        raise LeaseLost(number=run.lease.number, attempt=run.lease.attempt)


FENCED = {
    "report": lambda run, _: run.report(0.1),
    "save": lambda run, _: run.save(run.checkpoint(step=99)),
    "finish": lambda run, _: run.finish(0.1),
    "fail": lambda run, _: run.finish(outcome=Reason.FAILED),
    "release": lambda run, _: run.finish(0.1, outcome=Reason.PREEMPTED),
    "mark_corrupt": lambda run, saved: mark_corrupt(
        run.worker.database, lease=run.lease, checkpoint=saved
    ),
    "record_event": lambda run, _: record_event(
        run.worker.database, lease=run.lease, kind="disk full", data={}
    ),
}
WRITES = FENCED | {"renew": renew}


def taken_by_another(clock, run):
    database, study = run.worker.database, run.worker.study
    assert recover_after_expiry(clock, database, study) == 1
    successor = SimulatedWorker(database, study).take()
    assert successor.lease.trial_id == run.lease.trial_id
    successor.report(0.7)
    return successor


def given_the_same_number_twice(clock, run):
    """Replace the token, as if a restored database had given the number to another attempt."""
    another = token()
    change_row(run, "trial", "id", f"token = '{another}'")
    change_row(run, "attempt", "trial_id", f"token = '{another}'")


def exploited(clock, run):
    """Begin the next attempt with the same token, as an exploit would (not implemented yet)."""
    change_row(run, "trial", "id", "attempt = attempt + 1")


def change_row(run, table, key, values):
    statement = f"UPDATE {table} SET {values} WHERE {key} = {run.lease.trial_id}"
    change(run.worker.database, statement)


def recovered(clock, run):
    assert recover_after_expiry(clock, run.worker.database, run.worker.study) == 1


def ended(clock, run):
    taken_by_another(clock, run).finish(0.6)


FATES = [taken_by_another, given_the_same_number_twice, recovered, ended]


def held_attempt(database):
    """Let an attempt report a result and save a checkpoint; return attempt and checkpoint."""
    study = new_study(database)
    enqueued(database, study)
    run = SimulatedWorker(database, study).claim()
    run.report(0.9)
    run.save()
    with database.begin(write=False) as txn:
        saved = checkpoints.find(txn, checkpoint_id=run.trial().checkpoint_id)
    return run, saved


def check_that_nothing_changes(write, run, saved):
    # The table `worker` is left out, because even a refused renewal updates its worker's row.
    with unchanged_rows(run.worker.database, without=["worker"]), pytest.raises(LeaseLost):
        retry_while_busy(lambda: write(run, saved))


@pytest.mark.row("B1")
@pytest.mark.parametrize("fate", FATES)
def test_zombie_changes_nothing(database, clock, subtests, fate):
    for name, write in WRITES.items():
        zombie = held_attempt(database)
        fate(clock, zombie[0])

        with subtests.test(name):
            check_that_nothing_changes(write, *zombie)


def test_earlier_attempt_with_the_same_token_changes_nothing(database, clock, subtests):
    for name, write in FENCED.items():
        zombie = held_attempt(database)
        exploited(clock, zombie[0])

        with subtests.test(name):
            check_that_nothing_changes(write, *zombie)


def test_writes_of_the_holder_are_accepted(database, clock, subtests):
    for name, write in WRITES.items():
        run, saved = held_attempt(database)
        before = dump(database, without=["worker"])
        clock.advance(1)

        with subtests.test(name):
            write(run, saved)

            assert dump(database, without=["worker"]) != before


# A recovered trial is not RUNNING and has no token. A trial that another attempt holds has another
# attempt number and another token. In both cases one of the two differences is enough for the fence
# to refuse the zombie, so the test removes both conditions.
@pytest.mark.parametrize(
    ("parts", "fate"),
    [
        (("token",), given_the_same_number_twice),
        (("attempt",), exploited),
        (("state", "token"), recovered),
        (("attempt", "token"), taken_by_another),
    ],
    ids=["token", "attempt", "state and token", "attempt and token"],
)
def test_zombie_can_write_if_a_part_of_the_fence_is_missing(database, clock, subtests, parts, fate):
    for name, write in FENCED.items():
        zombie = held_attempt(database)
        fate(clock, zombie[0])

        with subtests.test(name), pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "HOLD", hold_without(*parts))
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                check_that_nothing_changes(write, *zombie)


def test_renewal_that_ignores_the_token_renews_a_successors_lease(database, clock, monkeypatch):
    zombie = held_attempt(database)
    taken_by_another(clock, zombie[0])
    by_id_alone = (
        sa.update(trial)
        .where(is_listed(trial.c.id, "ids"), is_still(State.RUNNING))
        .values(leases.RENEWED)
        .returning(*leases.RENEW.statement.exported_columns)
    )

    monkeypatch.setattr(leases, "RENEW", Prepared(by_id_alone))

    with pytest.raises(KeyError):  # the reply has the successor's token, not the zombie's
        check_that_nothing_changes(renew, *zombie)


def hold_without(*parts):
    fence = [part for part in leases.FENCE if part.left.name not in parts]
    assert len(fence) == len(leases.FENCE) - len(parts)
    return Prepared(sa.select(*leases.HELD).where(*fence).with_for_update(key_share=True, of=trial))
