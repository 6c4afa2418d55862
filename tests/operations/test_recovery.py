"""
Any worker recovers lost trials, but never a trial whose holder still renews its lease.

Lost and failed trials run again, with growing back-offs, up to `max_losses` and `max_failures`.
"""

import pytest
from harness.arrange import (
    LEASE_S,
    RENEWAL_S,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    process,
    recover_after_expiry,
    rows,
    states_of,
    unchanged_rows,
)

from studydb.domain.errors import LeaseLost
from studydb.domain.failures import Failure
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.operations import control
from studydb.operations.delete import stop_for_deletion
from studydb.operations.record_event import record_event
from studydb.operations.recover import awaits_recovery, recover, recover_host
from studydb.operations.study_progress import read_progress
from studydb.store import sweeps

SHORT_S = 9.0  # a lease whose holder renews it every 2 s (SHORT_S / 4.5)


@pytest.fixture
def study(database, clock):
    return new_study(database, max_losses=2)


def suspects(database):
    return rows(database, "SELECT count(*) FROM trial WHERE suspect_at IS NOT NULL")[0][0]


# --- expired leases


def test_trial_whose_lease_has_not_expired_is_no_suspect(database, clock, study, worker):
    worker.ask()

    clock.advance(LEASE_S)
    with unchanged_rows(database):
        assert recover(database, study) == 0


def test_trial_whose_lease_has_expired_is_a_suspect_before_it_is_recovered(
    database, clock, study, worker
):
    run = worker.ask()

    clock.advance(LEASE_S + 1)
    recovered = recover(database, study), recover(database, study)

    assert recovered == (0, 0)
    assert suspects(database) == 1
    assert run.trial().state is State.RUNNING


def test_trial_whose_lease_has_expired_is_awaited_until_its_holder_renews_it(
    database, clock, study, worker
):
    other = SimulatedWorker(database, study)
    run = worker.ask()
    seen = [awaits_recovery(database, study, worker_id=other.id)]

    clock.advance(LEASE_S + 1)
    seen.append(awaits_recovery(database, study, worker_id=other.id))
    recover(database, study)
    seen.append(awaits_recovery(database, study, worker_id=other.id))
    by_holder = awaits_recovery(database, study, worker_id=worker.id)
    worker.renew(run)
    seen.append(awaits_recovery(database, study, worker_id=other.id))

    assert seen == [False, True, True, False]
    assert not by_holder


def test_trial_that_sweeps_cannot_recover_is_not_awaited_for_ever(database, clock, study, worker):
    other = SimulatedWorker(database, study)
    worker.ask()
    clock.advance(LEASE_S + 1)
    recover(database, study)  # marks the trial as a suspect

    clock.advance(RENEWAL_S + sweeps.RECOVERY_S - 0.01)
    before = awaits_recovery(database, study, worker_id=other.id)
    clock.advance(0.02)

    assert before
    assert not awaits_recovery(database, study, worker_id=other.id)


def test_suspect_is_recovered_after_one_renewal_period_of_its_holder(
    database, clock, study, worker
):
    short_worker = SimulatedWorker(database, study, lease_s=SHORT_S)
    slow, quick = worker.ask(), short_worker.ask()
    clock.advance(LEASE_S + 1)
    recover(database, study)

    clock.advance(SHORT_S / 4.5 - 0.01)
    before = recover(database, study)
    clock.advance(0.02)
    first = recover(database, study)
    clock.advance(RENEWAL_S - SHORT_S / 4.5 - 0.02)
    between = recover(database, study)
    clock.advance(0.02)
    second = recover(database, study)

    assert (before, first, between, second) == (0, 1, 0, 1)
    for run in (slow, quick):
        assert run.trial().state is State.PENDING
        assert run.trial().losses == 1


def test_holders_can_renew_after_an_outage_longer_than_their_leases(database, clock, study):
    runs = [SimulatedWorker(database, study).ask() for _ in range(3)]

    clock.advance(10 * LEASE_S)
    recover(database, study)
    for run in runs[:2]:
        clock.advance(1)
        run.worker.renew(run)
    clock.advance(RENEWAL_S + 1)

    assert recover(database, study) == 1
    assert states_of(database, study) == [State.RUNNING, State.RUNNING, State.PENDING]


FENCED_WRITES = {
    "report": lambda run: run.report(0.5),
    "empty report": lambda run: run.report(),
    "save": lambda run: run.save(run.checkpoint(step=1)),
    "renew": lambda run: run.worker.renew(run),
    "record_event": lambda run: record_event(
        run.worker.database, lease=run.lease, kind="disk full", data={}
    ),
}


@pytest.mark.parametrize("write", FENCED_WRITES)
def test_suspect_that_writes_is_no_longer_a_suspect(database, clock, study, worker, write):
    run = worker.ask()
    clock.advance(LEASE_S + 1)
    recover(database, study)

    FENCED_WRITES[write](run)
    clock.advance(RENEWAL_S + 1)

    assert suspects(database) == 0
    assert recover(database, study) == 0
    assert run.trial().state is State.RUNNING


CHANGES = {
    "renewed": "UPDATE trial SET suspect_at = NULL, lease_expires_at = '2027-01-01 00:00:00.000'",
    "taken": "UPDATE trial SET attempt = 2, token = 'another'",
}


@pytest.mark.parametrize("change_", CHANGES)
def test_trial_is_not_recovered_if_it_is_renewed_or_claimed_during_the_sweep(
    clock, worker, monkeypatch, change_
):
    run, database, study = worker.ask(), worker.database, worker.study
    clock.advance(LEASE_S + 1)
    recover(database, study)
    clock.advance(RENEWAL_S + 1)
    hold_lost = sweeps.hold_lost

    def change_and_hold(txn, **lost):
        txn.raw(CHANGES[change_])
        return hold_lost(txn, **lost)

    monkeypatch.setattr(sweeps, "hold_lost", change_and_hold)

    assert recover(database, study) == 0
    assert run.trial().state is State.RUNNING


def test_sweep_is_bounded_and_the_next_sweep_continues(database, clock, study, monkeypatch):
    wide = new_study(database, num_trials=250)
    workers = SimulatedWorker(database, wide)
    for _ in range(sweeps.MOST + 1):
        workers.ask()
    clock.advance(LEASE_S + 1)

    marked = [suspects(database) for _ in range(3) if recover(database, wide) == 0]
    clock.advance(RENEWAL_S + 1)

    assert marked == [sweeps.MOST, sweeps.MOST + 1, sweeps.MOST + 1]
    assert [recover(database, wide) for _ in range(3)] == [sweeps.MOST, 1, 0]


def test_sweep_changes_no_other_study(database, clock, study, worker):
    worker.ask()
    other = new_study(database)

    assert recover_after_expiry(clock, database, other) == 0
    assert states_of(database, study) == [State.RUNNING]


# --- lost trials


def test_lost_trial_is_pending_again_and_its_attempt_is_recorded_as_lost(
    database, clock, study, worker
):
    run = worker.ask()
    run.report(0.5)

    recover_after_expiry(clock, database, study)

    trial = run.trial()
    assert (trial.state, trial.reason, trial.losses) == (State.PENDING, None, 1)
    assert rows(database, "SELECT reason, flush_no FROM attempt") == [("LOST", 1)]
    assert rows(database, "SELECT kind, actor, attempt FROM event WHERE kind = 'lost'") == [
        ("lost", "sweep", 1)
    ]
    assert worker.claim().lease.attempt == 2


def test_verdict_on_a_trial_takes_effect_when_the_attempt_is_lost(database, clock):
    study = new_study(database, rules=read_rules({"loss": 0.5}))
    run = SimulatedWorker(database, study).ask()
    run.report(0.9)

    recover_after_expiry(clock, database, study)

    trial = run.trial()
    assert (trial.state, trial.reason) == (State.TERMINATED, Reason.RULE_STOPPED)
    assert rows(database, "SELECT reason, verdict, verdict_by FROM attempt") == [
        ("LOST", "STOP", "rule")
    ]


@pytest.mark.parametrize("asked", [control.stop, control.pause])
def test_stop_or_pause_of_a_trial_takes_effect_when_its_attempt_is_lost(clock, worker, asked):
    run = worker.ask()
    asked(worker.database, worker.study, [0], new_request())

    recover_after_expiry(clock, worker.database, worker.study)

    trial = run.trial()
    assert trial.state is (State.TERMINATED if asked is control.stop else State.PAUSED)
    assert trial.reason is (Reason.CANCELLED if asked is control.stop else None)
    assert trial.request is None


def test_lost_trial_of_a_stopped_study_is_cancelled(database, clock, study, worker):
    run = worker.ask()
    control.set_status(database, study, Status.STOPPED, new_request())

    recover_after_expiry(clock, database, study)

    assert run.trial().reason is Reason.CANCELLED


def lose(clock, worker):
    assert worker.claim() is not None
    assert recover_after_expiry(clock, worker.database, worker.study) == 1
    clock.advance(300)
    recover(worker.database, worker.study)


def test_trial_ends_as_an_error_when_its_losses_exceed_max_losses(database, clock, study, worker):
    enqueued(database, study)

    for _ in range(3):
        lose(clock, worker)

    assert states_of(database, study) == [State.ERROR]
    assert rows(database, "SELECT reason, losses FROM trial") == [("LOST", 3)]
    assert worker.claim() is None


@pytest.mark.parametrize(("step", "losses"), [(4, 0), (3, 2), (2, 2)])
def test_only_a_checkpoint_of_a_new_highest_step_resets_the_losses(
    database, clock, worker, step, losses
):
    enqueued(database, worker.study)
    run = worker.claim()
    run.save(run.checkpoint(step=3))
    run.finish(outcome=Reason.PREEMPTED)
    lose(clock, worker)
    lose(clock, worker)

    run = worker.claim()
    run.save(run.checkpoint(step=step))

    assert rows(database, "SELECT checkpoint_step, losses FROM trial") == [(max(step, 3), losses)]


# --- failures and back-off


def fail(run):
    return run.finish(outcome=Reason.FAILED, failure=Failure("ValueError", "no", "Traceback"))


@pytest.mark.row("B12")
def test_trial_ends_as_an_error_when_its_failures_exceed_max_failures_and_its_exception_is_stored(
    database, clock
):
    study = new_study(database, max_failures=0)
    run = SimulatedWorker(database, study).ask()

    fail(run)

    trial = run.trial()
    assert (trial.state, trial.reason, trial.failures) == (State.ERROR, Reason.FAILED, 1)
    assert rows(database, "SELECT reason, error_type, error_message, traceback FROM attempt") == [
        ("FAILED", "ValueError", "no", "Traceback")
    ]


def test_failed_trial_is_not_ready_until_its_back_off_ends_and_a_sweep_wakes_it(database, clock):
    study = new_study(database, max_failures=2)
    worker = SimulatedWorker(database, study)
    fail(worker.ask())

    assert rows(database, "SELECT state FROM trial WHERE NOT ready") == [("PENDING",)]
    assert worker.claim() is None
    assert not read_progress(database, study).has_runnable
    clock.advance(0.9)
    recover(database, study)
    assert worker.claim() is None
    clock.advance(0.2)
    recover(database, study)
    assert worker.claim().lease.attempt == 2


def test_back_off_doubles_with_every_failure(database, clock):
    study = new_study(database, max_failures=-1)
    worker = SimulatedWorker(database, study)
    worker.ask().finish(outcome=Reason.FAILED)

    waits = []
    for _ in range(3):
        waited = 0
        while not (run := worker.claim()):
            clock.advance(1)
            waited += 1
            recover(database, study)
        waits.append(waited)
        fail(run)

    assert waits == [1, 2, 4]


def test_trial_with_unlimited_failures_is_always_retried(database, clock):
    study = new_study(database, max_failures=-1)
    run = SimulatedWorker(database, study).take()
    change(database, "UPDATE trial SET failures = 5000")

    ending = fail(run)

    assert (ending.state, ending.failures, ending.delay_s) == (State.PENDING, 5001, 300.0)


@pytest.mark.row("A11")
def test_losses_and_failures_are_counted_apart_and_a_release_counts_as_neither(database, clock):
    study = new_study(database, max_failures=3)
    worker = SimulatedWorker(database, study)
    worker.ask().finish(outcome=Reason.PREEMPTED)
    after_release = rows(database, "SELECT failures, losses FROM trial")
    worker.claim()
    recover_after_expiry(clock, database, study)
    after_loss = rows(database, "SELECT failures, losses FROM trial")

    fail(worker.claim())

    assert (after_release, after_loss) == ([(0, 0)], [(0, 1)])
    assert rows(database, "SELECT failures, losses FROM trial") == [(1, 1)]


def test_attempt_counts_as_a_loss_and_records_an_event_if_its_worker_ends_it_as_lost(
    database, clock, study, worker
):
    run = worker.ask()

    run.finish(outcome=Reason.LOST)

    assert run.trial().losses == 1
    assert rows(database, "SELECT kind, actor FROM event WHERE kind = 'lost'") == [
        ("lost", "worker")
    ]


# --- dead processes of this host


def recover_from(database, study, *, alive=(), of=None):
    return recover_host(
        database, study, process=of or process(99), is_alive=lambda one: one.pid in alive
    )


def test_trials_of_dead_processes_of_this_host_are_recovered_before_their_leases_expire(
    database, study
):
    dead = SimulatedWorker(database, study, of=process(1)).ask()
    living = SimulatedWorker(database, study, of=process(2)).ask()

    assert recover_from(database, study, alive={2}) == 1
    assert dead.trial().state is State.PENDING
    assert living.trial().state is State.RUNNING
    with pytest.raises(LeaseLost):
        dead.report(0.5)


@pytest.mark.parametrize("elsewhere", [{"boot_id": "another"}, {"pid_namespace": "another"}])
def test_process_of_another_boot_or_pid_namespace_is_not_taken_for_a_dead_process(
    database, study, elsewhere
):
    SimulatedWorker(database, study, of=process(1, **elsewhere)).ask()

    assert recover_from(database, study) == 0
    assert states_of(database, study) == [State.RUNNING]


def test_trial_is_not_recovered_if_it_is_claimed_again_during_the_recovery(
    database, study, monkeypatch
):
    dead = SimulatedWorker(database, study, of=process(1))
    stale = dead.ask()
    with database.begin(write=False) as txn:
        seen = sweeps.of_host(txn, study_id=study.id, process=process())
    stale.finish(outcome=Reason.PREEMPTED)
    SimulatedWorker(database, study, of=process(1)).claim()

    monkeypatch.setattr(sweeps, "of_host", lambda *_, **__: seen)

    assert recover_from(database, study) == 0


def test_lost_trials_do_not_block_a_deletion_even_if_they_are_too_many_for_one_sweep(
    database, clock
):
    study = new_study(database, num_trials=sweeps.MOST + 1)
    worker = SimulatedWorker(database, study)
    for _ in range(sweeps.MOST + 1):
        worker.ask()
    clock.advance(LEASE_S + 1)
    for _ in range(2):
        recover(database, study)  # each sweep marks at most 100 suspects
    clock.advance(LEASE_S)

    stop_for_deletion(database, study)

    assert rows(database, "SELECT deleting_at IS NOT NULL FROM study")[0][0]
