"""
On PostgreSQL, locks are taken in order: rungs, trials, checkpoints, study, counter shard.

Further tests below show which operations wait for each other, and that a sweep skips locked trials.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy as sa
from harness import postgres
from harness.arrange import (
    LEASE_S,
    RENEWAL_S,
    SimulatedWorker,
    change,
    dump,
    enqueued,
    new_request,
    new_study,
    rows,
)
from harness.concurrent import PATIENCE_S, held_at, is_free, is_waiting_for_a_lock, kept_waiting

from studydb.db import connect
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.errors import StorageBusy
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason, State, Status
from studydb.operations import control, flushing
from studydb.operations.annotate import tag
from studydb.operations.delete import delete
from studydb.operations.discard import discard
from studydb.operations.flushing import lock_rungs
from studydb.operations.pin import pin
from studydb.operations.recover import recover
from studydb.operations.renew import renew
from studydb.operations.retry import retry
from studydb.schedulers import ASHA
from studydb.store import attempts, deletion, leases, pins, rungs, studies


@pytest.fixture
def database(postgres_url):
    database = connect(postgres_url)
    yield database
    database.close()


def new_run(database, **overrides):
    return SimulatedWorker(database, new_study(database, **overrides)).take()


def reporting_at_two_rungs(database):
    run = new_run(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    return lambda: run.report(0.3, 0.2, 0.1)


def finishing_at_two_rungs(database):
    run = new_run(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    return lambda: run.finish(0.3, 0.2, 0.1)


def finishing(database):
    run = new_run(database, max_concurrent=3)
    return lambda: run.finish(0.3)


def claiming(database):
    study = new_study(database, max_concurrent=3)
    enqueued(database, study)
    return SimulatedWorker(database, study).claim


def asking(database):
    return SimulatedWorker(database, new_study(database)).ask


def enqueueing(database):
    study = new_study(database)
    return lambda: enqueued(database, study)


def stopping_two(database):
    study = new_study(database)
    for _ in range(2):
        enqueued(database, study)
    return lambda: control.stop(database, study, [1, 0], new_request())


def tagging_two(database):
    study = new_study(database)
    for _ in range(2):
        enqueued(database, study)
    tag(database, study, [0], new_request(), add=["a"])
    return lambda: tag(database, study, [0, 1], new_request(), add=["b"], remove=["a"])


def renewing_two(database):
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    first, second = worker.take(), worker.take()
    first.report(0.5)  # moves trial 0's row to the table's end; a sequential scan reads it last
    scanning = with_settings(
        database.secret_url.render_as_string(hide_password=False),
        enable_seqscan="on",
        enable_indexscan="off",
        enable_bitmapscan="off",
    )

    def call():
        renew(scanning, study, worker_id=worker.id, held=[second.lease, first.lease])
        scanning.close()

    return call


def pausing_with_the_study(database):
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    control.set_status(database, study, Status.PAUSED, new_request())
    return lambda: run.finish(0.3, outcome=Reason.PREEMPTED)


def running_clone(database, **overrides):
    """Run trial 0 and clone it; claim the clone, which begins from the checkpoint of trial 0."""
    worker = SimulatedWorker(database, new_study(database, **overrides))
    parent = worker.take()
    parent.report(0.5)
    parent.save()
    parent.finish()
    retry(database, worker.study, [0], new_request())
    return worker.take()


def finishing_a_clone_with_limits(database):
    run = running_clone(database, max_steps=9)
    return lambda: run.finish(0.3)


def finishing_a_clone_of_a_stopped_study(database):
    run = running_clone(database)
    control.set_status(database, run.worker.study, Status.STOPPED, new_request())
    return lambda: run.finish(0.3, outcome=Reason.PREEMPTED)


def reporting_with_limits(database):
    run = new_run(database, max_steps=9, trial_time_limit_s=60.0)
    return lambda: run.report(0.3)


def renewing_with_limits(database):
    run = new_run(database, total_time_limit_s=60.0)
    return lambda: run.worker.renew(run)


ORDER = [
    (reporting_at_two_rungs, "rung WHERE step = 1", ["rung WHERE step = 3", "trial"]),
    (reporting_at_two_rungs, "rung WHERE step = 3", ["trial"]),
    (finishing_at_two_rungs, "rung WHERE step = 1", ["rung WHERE step = 3", "trial"]),
    (finishing, "trial", ["study", "counter"]),
    (finishing, "study", ["counter"]),
    (pausing_with_the_study, "trial", ["study", "counter"]),
    (pausing_with_the_study, "study", ["counter"]),
    (finishing_a_clone_with_limits, "checkpoint", ["study", "counter"]),
    (finishing_a_clone_of_a_stopped_study, "checkpoint", ["study", "counter"]),
    (reporting_with_limits, "trial", ["study", "counter"]),
    (reporting_with_limits, "study", ["counter"]),
    (renewing_with_limits, "trial", ["study", "counter", "worker"]),
    (renewing_with_limits, "study", ["counter", "worker"]),
    (claiming, "study", ["counter"]),
    (asking, "study", ["counter"]),
    (enqueueing, "study", ["counter WHERE shard = 0"]),
    (stopping_two, "trial WHERE number = 0", ["trial WHERE number = 1", "counter WHERE shard = 0"]),
    (stopping_two, "trial WHERE number = 1", ["counter WHERE shard = 0"]),
    (tagging_two, "trial WHERE number = 1", ["tag"]),
    (renewing_two, "trial WHERE number = 0", ["trial WHERE number = 1"]),
]


@pytest.mark.parametrize(
    ("arranged", "held", "free"), ORDER, ids=[f"{case[0].__name__}-{case[1]}" for case in ORDER]
)
def test_operation_that_waits_for_a_lock_holds_no_later_lock(
    database, postgres_url, arranged, held, free
):
    call = arranged(database)

    with kept_waiting(postgres_url, call, held):
        taken = [lock for lock in free if not is_free(postgres_url, lock)]

    assert taken == []


def test_deletion_locks_the_study_before_its_counters(database, study, postgres_url):
    with kept_waiting(postgres_url, lambda: delete(database, study), "counter WHERE shard = 0"):
        assert not is_free(postgres_url, "study")


def test_trial_that_is_enqueued_during_a_deletion_is_deleted_too(database, monkeypatch):
    study, lock, late = new_study(database), deletion.lock_study, iter([enqueued])

    def lock_late(txn, **which):
        for enqueue in late:  # only at the first call; after it the iterator is empty
            enqueue(database, study)
        lock(txn, **which)

    monkeypatch.setattr(deletion, "lock_study", lock_late)
    delete(database, study)

    assert rows(database, "SELECT (SELECT count(*) FROM study), count(*) FROM trial") == [(0, 0)]


def delete_during(database, url, study, call, *, at):
    """Delete a study while `call`, held at the function `at`, has a lock that deletion needs."""
    with held_at(*at) as (there, go), ThreadPoolExecutor(2) as pool:
        called = pool.submit(call)
        assert there.wait(PATIENCE_S)
        deleted = pool.submit(delete, database, study)
        assert is_waiting_for_a_lock(url)
        go.set()
        called.result(PATIENCE_S)
        deleted.result(PATIENCE_S)
    assert not any(dump(database).values())


def test_deletion_waits_for_a_retry_and_deletes_its_pins(database, postgres_url):
    run = new_run(database)
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.FAILED)
    study = run.worker.study

    again = partial(retry, database, study, [0], new_request())

    delete_during(database, postgres_url, study, again, at=(pins, "insert"))


def test_checkpoint_that_a_retry_of_a_clone_pins_is_not_discarded(database, postgres_url):
    run = new_run(database)
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.FAILED)
    study = run.worker.study
    retry(database, study, [0], new_request())
    run.worker.claim().finish(outcome=Reason.FAILED)

    again = partial(retry, database, study, [1], new_request())
    with held_at(pins, "insert") as (there, go), ThreadPoolExecutor(2) as pool:
        cloned = pool.submit(again)
        assert there.wait(PATIENCE_S)
        removed = pool.submit(discard, database, study, 0, new_request())
        assert is_waiting_for_a_lock(postgres_url)
        go.set()
        cloned.result(PATIENCE_S)
        assert removed.result(PATIENCE_S) == []

    assert run.worker.claim().claimed.checkpoint.step == 1


def test_save_waits_for_a_pin_by_a_person_and_keeps_the_pinned_checkpoint(database, postgres_url):
    run = new_run(database)
    for _ in range(2):
        run.report(0.5)
        run.save()
    study = run.worker.study

    pinning = partial(pin, database, study, 0, new_request(), step=1)
    with held_at(pins, "of_people") as (there, go), ThreadPoolExecutor(2) as pool:
        pinned = pool.submit(pinning)
        assert there.wait(PATIENCE_S)
        saved = pool.submit(run.save, run.checkpoint(step=3))
        assert is_waiting_for_a_lock(postgres_url)
        go.set()
        assert pinned.result(PATIENCE_S) == 1
        assert saved.result(PATIENCE_S) == []


def test_checkpoint_that_a_clone_finds_corrupt_during_a_pin_is_not_pinned(database, postgres_url):
    run = new_run(database)
    for _ in range(2):
        run.report(0.5)
        run.save()
    run.finish(outcome=Reason.FAILED)
    study = run.worker.study
    retry(database, study, [0], new_request())
    clone = run.worker.claim()

    with held_at(pins, "count") as (there, go), ThreadPoolExecutor(1) as pool:
        pinned = pool.submit(pin, database, study, 0, new_request())
        assert there.wait(PATIENCE_S)
        change(
            database,
            "UPDATE checkpoint SET removed_at = created_at, corrupt_at = created_at WHERE step = 2",
        )
        go.set()
        assert pinned.result(PATIENCE_S) == 1

    assert clone.claimed.checkpoint.step == 2


def test_deletion_waits_for_the_registration_of_a_worker_and_then_deletes_the_workers_row(
    database, postgres_url
):
    study = new_study(database)

    registering = partial(SimulatedWorker, database, study)

    delete_during(database, postgres_url, study, registering, at=(studies, "start"))


def test_result_that_is_stored_during_a_deletion_is_deleted_too(database, postgres_url):
    run = new_run(database, max_steps=100)
    change(database, "UPDATE trial SET lease_expires_at = '2000-01-01', suspect_at = '2000-01-01'")
    delete_some_trials, reports = deletion.delete_some_trials, []

    def delete_while_the_attempt_reports(txn, **which):
        """Delete the trial, whose lease has expired, once its attempt begins to store a report."""
        if not reports:
            reports.append(pool.submit(run.report, 0.5))
            assert there.wait(PATIENCE_S)
            pool.submit(lambda: is_waiting_for_a_lock(postgres_url) and go.set())
        delete_some_trials(txn, **which)

    with (
        held_at(leases, "record") as (there, go),
        ThreadPoolExecutor(3) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(deletion, "delete_some_trials", delete_while_the_attempt_reports)
        delete(database, run.worker.study)
        reports[0].result(PATIENCE_S)

    assert not any(dump(database).values())


def test_resumption_of_a_study_waits_for_an_ending_attempt_and_makes_its_trial_pending(
    database, postgres_url
):
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    control.set_status(database, study, Status.PAUSED, new_request())

    with held_at(attempts, "end") as (there, go), ThreadPoolExecutor(2) as pool:
        end = pool.submit(run.finish, 0.3, outcome=Reason.PREEMPTED)
        assert there.wait(PATIENCE_S)
        resumed = pool.submit(control.set_status, database, study, Status.RUNNING, new_request())
        assert is_waiting_for_a_lock(postgres_url)
        go.set()
        end.result(PATIENCE_S)
        resumed.result(PATIENCE_S)

    assert run.trial().state is State.PENDING


# --- rungs before trials


def rival_meets_report(database, url):
    """
    Let a rival lock a rung and then a trial (the lock order), while the trial reports.

    Returns:
        The rival's error or None, and the report's error or None.
    """
    run = new_run(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    with postgres.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute("SET deadlock_timeout = '20ms'")
        refused = None
        try:
            with rival.transaction():
                rival.execute("SELECT 1 FROM rung WHERE step = 1 FOR NO KEY UPDATE")
                report = pool.submit(run.report, 0.5)
                assert is_waiting_for_a_lock(url)
                rival.execute("SELECT 1 FROM trial FOR NO KEY UPDATE")
        except psycopg.errors.DeadlockDetected as error:
            refused = error
        return refused, report.exception(PATIENCE_S)


def test_report_does_not_deadlock_with_a_rival_that_keeps_to_the_lock_order(database, postgres_url):
    assert rival_meets_report(database, postgres_url) == (None, None)


def test_report_that_locks_its_trial_before_the_rung_deadlocks_with_a_rival(
    database, postgres_url, monkeypatch
):
    def trial_first(txn, study, *, lease, batch):
        leases.hold(txn, lease=lease)
        return lock_rungs(txn, study, lease=lease, batch=batch)

    monkeypatch.setattr(flushing, "lock_rungs", trial_first)

    refused, reported = rival_meets_report(database, postgres_url)
    assert isinstance(refused, psycopg.errors.DeadlockDetected) or isinstance(reported, StorageBusy)


def test_deadlock_raises_storage_busy_and_the_request_can_be_repeated(database, postgres_url):
    study = new_study(database)
    for _ in range(2):
        enqueued(database, study)
    # The session with the shortest `deadlock_timeout` finds the deadlock and is cancelled.
    hasty = with_settings(postgres_url, deadlock_timeout="10ms")

    def stop():
        control.stop(hasty, study, [0, 1], new_request())

    with postgres.connect(postgres_url) as rival, ThreadPoolExecutor(2) as pool:
        rival.execute("SET deadlock_timeout = '1h'")
        with rival.transaction():
            rival.execute("SELECT 1 FROM trial WHERE number = 1 FOR NO KEY UPDATE")
            with held_at_second_lock() as (there, go):
                stopped = pool.submit(stop)
                assert there.wait(PATIENCE_S)
                want = "SELECT 1 FROM trial WHERE number = 0 FOR NO KEY UPDATE"
                wanted = pool.submit(rival.execute, want)
                assert is_waiting_for_a_lock(postgres_url)
                go.set()
                refused = stopped.exception(PATIENCE_S)
            wanted.result(PATIENCE_S)
    stop()
    hasty.close()

    assert isinstance(refused, StorageBusy)
    assert "deadlock" in str(refused)
    assert rows(database, "SELECT DISTINCT state FROM trial") == [("TERMINATED",)]


@contextmanager
def held_at_second_lock():
    """Let a request wait after it has locked its first trial and before it locks its second."""
    lock = control._lock
    with pytest.MonkeyPatch.context() as patch:

        def first_lock(*args):
            locked = lock(*args)
            patch.setattr(control, "_lock", second)
            return locked

        with held_at(control, "_lock") as gate:
            second = control._lock
            patch.setattr(control, "_lock", first_lock)
            yield gate


def with_settings(url, **settings):
    options = quote(" ".join(f"-c {name}={value}" for name, value in settings.items()))
    return connect(f"{url}{'&' if '?' in url else '?'}options={options}")


# --- lock in one statement, read in the next


IN_ONE_STATEMENT = sa.text("""
    WITH locked AS (SELECT * FROM rung WHERE step = 1 FOR NO KEY UPDATE)
    SELECT n_entries, (SELECT count(*) FROM rung_entry e WHERE e.rung_id = locked.id) FROM locked
""").columns(sa.column("n_entries", sa.Integer), sa.column("entries", sa.Integer))


def in_one_statement(txn, _study):
    return tuple(txn.all(IN_ONE_STATEMENT)[0])


def in_two_statements(txn, study):
    rung = rungs.lock(txn, study_id=study.id, key=RungKey(0, 1))
    beside = rungs.query_neighbours(txn, rung=rung, trial_id=0)()
    # The rung has two entries at most: the cut, and a better entry beside it.
    return rung.n_entries, (beside.better is not None) + (rung.cut.entry is not None)


@pytest.mark.parametrize(
    ("read", "seen"), [(in_one_statement, (2, 1)), (in_two_statements, (2, 2))]
)
def test_rung_and_entries_agree_only_if_an_earlier_statement_has_locked_the_rung(
    database, postgres_url, read, seen
):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    worker, other = SimulatedWorker(database, study), connect(postgres_url)
    worker.take().report(0.5)
    late = worker.take()

    def read_late():
        with other.begin() as txn:
            return read(txn, study)

    with held_at(TransactionBlock, "_end") as (there, go), ThreadPoolExecutor(2) as pool:
        pool.submit(late.report, 0.1)
        assert there.wait(PATIENCE_S)
        future = pool.submit(read_late)
        assert is_waiting_for_a_lock(postgres_url)
        go.set()
        found = future.result(PATIENCE_S)
    other.close()

    assert found == seen


# --- sweeps


def test_sweep_skips_locked_trials(database, postgres_url):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    database.clock = lambda: now
    study = new_study(database)
    for _ in range(2):
        SimulatedWorker(database, study).take()
    now += timedelta(seconds=LEASE_S + 1)
    recover(database, study)
    now += timedelta(seconds=RENEWAL_S + 1)

    with postgres.connect(postgres_url) as rival, rival.transaction():
        rival.execute("SELECT 1 FROM trial WHERE number = 0 FOR NO KEY UPDATE")
        taken = [recover(database, study) for _ in range(2)]

    assert taken == [1, 0]
    assert rows(database, "SELECT number, state FROM trial ORDER BY number") == [
        (0, "RUNNING"),
        (1, "PENDING"),
    ]
