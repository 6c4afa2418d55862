"""
What the next look of an idle process notices, and when such a look reads the progress again.

The last tests show which requests a process notices while it runs trials.
"""

import math

import pytest
from harness.arrange import (
    LEASE_S,
    RENEWAL_S,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
)

from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason, Status
from studydb.lease import watch
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.renew import is_requested
from studydb.processes import this_process
from studydb.schedulers import ASHA

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion")


class IdleProcess:
    """A process that has found no trial; neither a sweep nor a regular read of progress is due."""

    def __init__(self, database, study):
        worker = SimulatedWorker(database, study)
        self.acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
        assert self.acquirer.acquire() is None
        self.look()
        self.acquirer._sweeps._end_s = self.acquirer._watch._renewal._end_s = math.inf

    def look(self):
        return self.acquirer.look()


def set_status(database, study, status):
    control.set_status(database, study, status, new_request())


@pytest.fixture
def study(database):
    """A study whose budget of one trial is spent; the trial has ended."""
    study = new_study(database, num_trials=1, max_failures=1)
    SimulatedWorker(database, study).ask().finish(0.5)
    return study


def test_next_look_notices_a_trial_that_a_person_adds(database):
    study = new_study(database, num_trials=None, searcher=None)
    idle = IdleProcess(database, study)

    number = enqueued(database, study)

    assert idle.look().can_claim
    assert idle.acquirer.acquire().lease.number == number


def test_next_look_notices_a_higher_budget(database, study):
    idle = IdleProcess(database, study)

    control.extend(database, study, new_request(), n_more=1)

    assert idle.look().can_claim


@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
def test_next_look_notices_a_pause_a_stop_and_a_resumption(database, status):
    study = new_study(database, num_trials=2, max_concurrent=1)
    SimulatedWorker(database, study).ask()
    idle = IdleProcess(database, study)

    set_status(database, study, status)
    seen = [idle.look().status]
    set_status(database, study, Status.RUNNING)
    seen.append(idle.look().status)

    assert seen == [status, Status.RUNNING]


def test_next_look_notices_that_the_last_trial_has_ended_elsewhere(database):
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).ask()
    idle = IdleProcess(database, study)
    assert not idle.look().is_done

    run.finish(0.5)

    assert idle.look().is_done


def test_next_look_notices_that_fewer_than_max_concurrent_trials_run(database):
    study = new_study(database, max_concurrent=1)
    run = SimulatedWorker(database, study).ask()
    idle = IdleProcess(database, study)

    run.finish(0.5)

    assert idle.look().can_claim


def test_next_look_wakes_a_trial_whose_back_off_is_over(database, clock):
    study = new_study(database, num_trials=1, max_failures=1)
    SimulatedWorker(database, study).ask().finish(outcome=Reason.FAILED)
    idle = IdleProcess(database, study)
    assert not idle.look().can_claim

    clock.advance(2)

    assert idle.look().can_claim
    assert idle.acquirer.acquire().lease.attempt == 2


def test_next_look_wakes_trials_that_an_interrupted_resumption_has_left_paused(database):
    study = new_study(database, num_trials=1)
    run = SimulatedWorker(database, study).ask()
    set_status(database, study, Status.PAUSED)
    run.finish(outcome=Reason.PREEMPTED)
    idle = IdleProcess(database, study)

    change(database, "UPDATE study SET status = 'RUNNING', paused_by = NULL")

    assert idle.look().can_claim


def test_next_look_notices_that_a_trial_in_back_off_was_stopped(database):
    study = new_study(database, num_trials=1, max_failures=1)
    SimulatedWorker(database, study).ask().finish(outcome=Reason.FAILED)
    idle = IdleProcess(database, study)
    assert not idle.look().is_done

    control.stop(database, study, [0], new_request())

    assert idle.look().is_done


def test_trial_of_a_dead_worker_is_recovered_by_the_looks_of_an_idle_process(database, clock):
    study = new_study(database, num_trials=1)
    SimulatedWorker(database, study).ask()
    idle = IdleProcess(database, study)

    for wait_s in (LEASE_S + 1, RENEWAL_S + 1):
        clock.advance(wait_s)
        idle.acquirer._sweeps._end_s = 0.0
        seen = idle.look()

    assert seen.can_claim


def test_look_notices_within_5_s_that_a_report_elsewhere_lets_a_trial_be_promoted(
    database, monkeypatch
):
    study = new_study(database, scheduler=PROMOTION, num_trials=4)
    worker = SimulatedWorker(database, study)
    runs = [worker.ask() for _ in range(4)]
    idle = IdleProcess(database, study)

    for run, value in zip(runs[:3], (0.1, 0.5, 0.9), strict=True):
        assert run.report(value).verdict.action is Action.PAUSE
        run.finish(outcome=Reason.PREEMPTED)
    idle.acquirer._watch._renewal.begin()
    now_s = watch.monotonic()
    monkeypatch.setattr(watch, "monotonic", lambda: now_s + watch.PROMOTION_S)

    assert idle.look().can_claim


def test_search_that_finds_no_trial_makes_the_next_look_read_the_progress_again(database, study):
    idle = IdleProcess(database, study)
    seen = idle.look()

    idle.acquirer._is_idle = False
    assert idle.acquirer.acquire() is None

    assert idle.look() is not seen
    assert idle.look() is idle.look()


def test_look_has_an_answer_although_another_thread_has_just_tried_a_claim(database, study):
    looking = watch.Watch(database, study)
    begin = looking._renewal.begin

    def begin_while_another_thread_claims():
        begin()
        looking.forget()

    looking._renewal.begin = begin_while_another_thread_claims

    assert looking.read().is_done


def test_request_about_a_held_trial_is_seen_until_a_renewal_has_received_it(database):
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    run, other = worker.ask(), worker.ask()

    def seen():
        return is_requested(database, held=[run.lease, other.lease], worker_id=worker.id)

    found = [seen()]
    for request in (
        lambda: control.stop(database, study, [run.lease.number], new_request()),
        lambda: control.resume(database, study, [run.lease.number], new_request()),
        lambda: set_status(database, study, Status.PAUSED),
        lambda: set_status(database, study, Status.RUNNING),
    ):
        request()
        found.append(seen())
        worker.renew(run, other)
        found.append(seen())

    assert found == [False] + 4 * [True, False]


def test_drain_is_seen_by_an_idle_worker_and_by_a_worker_that_runs_trials(database, study):
    idle = IdleProcess(database, study)
    busy = SimulatedWorker(database, new_study(database), of=this_process())
    run = busy.take()

    def seen(known=None):
        held = [run.lease]
        return is_requested(database, held=held, worker_id=busy.id, known=known)

    before = (idle.acquirer.is_drained, seen())
    change(database, "UPDATE worker SET request = 'DRAIN'")
    idle.look()

    assert before == (False, False)
    assert idle.acquirer.is_drained
    assert seen()
    assert not seen(known=busy.renew(run).request)


def test_request_about_a_trial_is_not_seen_by_the_holder_of_an_earlier_lease(database):
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    run = worker.ask()
    run.finish(outcome=Reason.PREEMPTED)
    worker.claim()

    control.stop(database, study, [run.lease.number], new_request())

    assert not is_requested(database, held=[run.lease], worker_id=run.worker.id)
