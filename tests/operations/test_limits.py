"""Limits of a study's cost, results, running time and age, and of each trial's running time."""

import random

import pytest
from harness.arrange import (
    LEASE_S,
    RENEWAL_S,
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_spec,
    new_study,
    recover_after_expiry,
    retry_while_busy,
    rows,
    run_together,
)
from harness.settings_requests import set_limits

from studydb.analysis.explaining import explain_state
from studydb.db import connect
from studydb.domain.errors import InvalidSpec, NotAllowed
from studydb.domain.failures import Failure
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.limits import CostLimit, read_cost_limit, read_duration, read_max_steps
from studydb.lease.heartbeat import renewal_period_s
from studydb.operations import control
from studydb.operations.overview import read_overview
from studydb.operations.reads import trial_details
from studydb.operations.spending import stop_if_too_old
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA

SPENT = Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.LIMIT)
SPENT_BY_STUDY = Verdict(Action.STOP, Reason.BUDGET_SPENT, DecidedBy.STUDY)
TIMED_OUT = Verdict(Action.STOP, Reason.TIMED_OUT, DecidedBy.LIMIT)
USD = CostLimit("usd", 10.0)


def spent(database):
    (sums,) = rows(database, "SELECT sum(cost), sum(steps), sum(time_s) FROM counter")
    return tuple(float(each) for each in sums)


def resume(database, study):
    control.set_status(database, study, Status.RUNNING, new_request())


def limited(database, **limits):
    """A worker of a new study with limits."""
    return SimulatedWorker(database, new_study(database, **limits))


def test_flush_that_reaches_the_cost_limit_stops_the_study_and_says_why(database):
    worker = limited(database, cost_limit=USD)
    run = worker.take()

    before = run.report(0.5, usd=9.5)
    crossing = run.report(0.4, usd=0.75)

    progress = read_progress(database, worker.study)
    assert (before.verdict, crossing.verdict) == (None, SPENT)
    assert progress.status is Status.STOPPED
    assert progress.limit_reached == "cost_limit is reached (10.25 of 10 usd)"
    assert spent(database) == (10.25, 2, 0)
    assert worker.acquire() is None
    (event,) = rows(database, "SELECT kind FROM event WHERE actor = 'limit'")
    assert event == ("study stopped",)


def test_trial_whose_flush_reached_the_limit_stores_no_more_results(database):
    worker = limited(database, max_steps=3)
    run = worker.take()
    run.report(0.5, 0.5, 0.5)

    late = run.report(0.1)
    ending = run.finish(0.1, outcome=Reason.PREEMPTED)

    assert late.verdict == SPENT
    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.BUDGET_SPENT)
    assert (spent(database)[1], run.trial().summary.n_results) == (3, 3)


@pytest.mark.parametrize("learns", ["flush", "renewal", "end"])
def test_other_trials_store_at_most_one_more_flush_after_a_limit_is_reached(database, learns):
    worker = limited(database, max_steps=3)
    crossing, other = worker.take(), worker.take()
    crossing.report(0.5, 0.5, 0.5)

    if learns == "flush":
        verdicts = [other.report(0.4).verdict, other.report(0.3).verdict]
        assert verdicts == [SPENT, SPENT]
    elif learns == "renewal":
        assert list(worker.renew(other).held.values()) == [SPENT_BY_STUDY]
    ending = other.finish(0.2, outcome=Reason.PREEMPTED)

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.BUDGET_SPENT)
    assert spent(database)[1] == 4


def test_trial_that_completes_with_the_flush_that_reaches_the_limit_is_completed(database):
    worker = limited(database, max_steps=3)

    ending = worker.take().finish(0.5, 0.4, 0.3)

    assert ending.reason is Reason.COMPLETED
    assert read_progress(database, worker.study).status is Status.STOPPED


@pytest.mark.parametrize("outcome", [Reason.PREEMPTED, Reason.FAILED, Reason.LOST])
def test_attempt_whose_last_flush_reaches_the_limit_ends_its_trial(database, outcome):
    worker = limited(database, max_steps=3, max_failures=5)

    ending = worker.take().finish(0.5, 0.4, 0.3, outcome=outcome)

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.BUDGET_SPENT)


def test_steps_that_a_later_attempt_trains_again_are_counted_again(database):
    worker = limited(database, max_steps=5)
    run = worker.take()
    run.report(0.5, 0.4, 0.3)
    run.finish(outcome=Reason.PREEMPTED)

    again = worker.take()
    answer = again.report(0.5, 0.4, first=1)

    assert again.lease.number == run.lease.number
    assert answer.verdict == SPENT


def test_batch_that_is_sent_again_is_counted_once(database):
    worker = limited(database, max_steps=9)
    run = worker.take()
    batch = run.batch(0.5, 0.4)

    run.send(batch)
    run.send(batch)

    assert spent(database)[1] == 2


def test_results_after_the_result_at_which_a_rule_stops_the_trial_are_not_counted(database):
    worker = limited(database, max_steps=9, rules=read_rules(["loss<0.2"]))

    worker.take().report(0.5, 0.1, 0.05)

    assert spent(database)[1] == 2


@pytest.mark.parametrize("value", [-3.0, float("nan"), float("inf"), "a lot", True, None])
def test_only_positive_numbers_add_to_the_cost(database, value):
    worker = limited(database, cost_limit=USD)

    worker.take().report(0.5, usd=value)

    assert spent(database)[0] == 0.0


def test_metric_of_the_study_can_be_the_cost(database):
    worker = limited(database, cost_limit=CostLimit("loss", 1.0))
    run = worker.take()

    verdicts = [run.report(0.75).verdict, run.report(0.25).verdict]

    assert verdicts == [None, SPENT]


@pytest.mark.row("A14")
def test_running_time_of_all_attempts_counts_up_to_the_last_sign_of_life(database, clock):
    worker = limited(database, total_time_limit_s=1000.0)
    run = worker.take()
    clock.advance(30)
    run.report(0.5)
    clock.advance(20)
    worker.renew(run)
    clock.advance(5)

    recover_after_expiry(clock, database, worker.study)  # the time after the renewal is not known

    assert run.trial().losses == 1
    assert spent(database)[2] == 50
    again = worker.take()
    clock.advance(7)
    again.finish(0.4)
    assert spent(database)[2] == 57


def test_total_time_limit_stops_the_study_at_a_renewal(database, clock):
    worker = limited(database, total_time_limit_s=100.0)
    runs = [worker.take() for _ in range(3)]

    clock.advance(30)
    before = list(worker.renew(*runs).held.values())
    clock.advance(5)
    after = list(worker.renew(*runs).held.values())

    assert before == [None] * 3
    assert after == [SPENT_BY_STUDY] * 3
    assert read_progress(database, worker.study).limit_reached.startswith(
        "total_time_limit_s is reached"
    )


@pytest.mark.parametrize("learns", ["flush", "renewal"])
def test_trial_that_has_run_for_its_time_limit_is_stopped(database, clock, learns):
    worker = limited(database, trial_time_limit_s=60.0)
    run, other = worker.take(), worker.take()
    clock.advance(59)
    early = [run.report(0.5).verdict, *worker.renew(run).held.values()]
    other.finish(outcome=Reason.PREEMPTED)
    clock.advance(1)
    later = worker.take()  # claims the trial of `other`, which has already run for 59 s

    if learns == "flush":
        verdict = run.report(0.4).verdict
    else:
        (verdict,) = worker.renew(run).held.values()
    ending = run.finish(outcome=Reason.PREEMPTED)

    assert early == [None, None]
    assert verdict == TIMED_OUT
    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.TIMED_OUT)
    assert later.report(0.4).verdict is None
    clock.advance(1)
    assert later.report(0.3).verdict == TIMED_OUT
    assert read_progress(database, worker.study).status is Status.RUNNING


def test_time_between_two_writes_of_an_attempt_counts_at_most_as_long_as_a_lease_lasts(
    database, clock
):
    worker = limited(database, trial_time_limit_s=600.0, total_time_limit_s=1000.0)
    run = worker.take()
    clock.advance(8 * 3600)  # the host of the only worker sleeps

    held = list(worker.renew(run).held.values())

    assert held == [None]
    assert spent(database)[2] == LEASE_S
    clock.advance(10)
    assert run.report(0.5).verdict is None
    assert run.trial().running_s == LEASE_S + 10


def test_explanation_of_a_timed_out_trial_names_its_time_and_the_limit(database, clock):
    worker = limited(database, trial_time_limit_s=60.0)
    run = worker.take()
    clock.advance(65)
    run.finish(0.5, outcome=Reason.PREEMPTED)

    why = explain_state(worker.study, trial_details(database, worker.study, 0))

    assert why == "the trial ran for 1 min 5 s; trial_time_limit_s is 1 min 0 s"


def test_explanation_of_a_trial_names_the_limit_that_stopped_its_study(database, clock):
    worker = limited(database, max_steps=1)
    first, second = worker.take(), worker.take()
    first.report(0.5)
    clock.advance(1)
    first.finish(outcome=Reason.PREEMPTED)
    clock.advance(1)
    set_limits(database, worker.study, {"max_steps": 2}, new_request())
    resume(database, worker.study)
    second.report(0.5)
    second.finish(outcome=Reason.PREEMPTED)

    whys = [explain_state(worker.study, trial_details(database, worker.study, n)) for n in (0, 1)]

    assert whys == [
        f"the study was stopped: max_steps is reached ({n} of {n} steps)" for n in (1, 2)
    ]


def test_time_between_two_attempts_does_not_count_as_running_time(database, clock):
    worker = limited(database, trial_time_limit_s=60.0)
    run = worker.take()
    clock.advance(50)
    run.finish(0.5, outcome=Reason.PREEMPTED)
    clock.advance(500)

    again = worker.take()

    clock.advance(9)
    assert again.report(0.4).verdict is None


@pytest.mark.parametrize("outcome", [Reason.PREEMPTED, Reason.FAILED, Reason.LOST])
def test_trial_without_time_left_is_not_run_again(database, clock, outcome):
    worker = limited(database, trial_time_limit_s=60.0, max_failures=3)
    run = worker.take()
    clock.advance(61)

    ending = run.finish(outcome=outcome, failure=Failure("Error", "x"))

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.TIMED_OUT)


@pytest.mark.parametrize("time_ends", ["before the flush", "after the flush"])
def test_trial_without_time_left_ends_although_its_scheduler_pauses_it(database, clock, time_ends):
    promotion = ASHA(max_t=9, reduction_factor=3, type="promotion")
    worker = limited(database, trial_time_limit_s=60.0, scheduler=promotion)
    run = worker.take()
    clock.advance(61 if time_ends == "before the flush" else 0)
    answer = run.report(0.5)
    clock.advance(61)

    ending = run.finish(outcome=Reason.PREEMPTED)

    paused = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.SCHEDULER)
    assert answer.verdict == (TIMED_OUT if time_ends == "before the flush" else paused)
    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.TIMED_OUT)
    assert worker.take().lease.number == 1  # the trial does not wait at the rung any more


def test_trial_without_time_left_is_early_stopped_if_its_scheduler_stops_it(database, clock):
    stopping = ASHA(max_t=9, reduction_factor=3)
    worker = limited(database, trial_time_limit_s=60.0, scheduler=stopping)
    for _ in range(3):
        worker.take().report(0.1)
    run = worker.take()
    clock.advance(61)

    assert run.report(0.9).verdict.reason is Reason.EARLY_STOPPED
    ending = run.finish(outcome=Reason.PREEMPTED)

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.EARLY_STOPPED)


def test_lost_trial_without_time_left_is_not_run_again(database, clock):
    worker = limited(database, trial_time_limit_s=60.0)
    run = worker.take()
    clock.advance(60)
    worker.renew(run)
    # Without the verdict that the renewal has stored, recovery must decide by the counted time.
    change(database, "UPDATE trial SET verdict = NULL, verdict_reason = NULL, verdict_by = NULL")

    recover_after_expiry(clock, database, worker.study)

    assert (run.trial().state, run.trial().reason) == (State.TERMINATED, Reason.TIMED_OUT)


def test_person_cannot_withdraw_a_time_out(database, clock):
    worker = limited(database, trial_time_limit_s=60.0)
    run = worker.take()
    control.pause(database, worker.study, [0], new_request())
    clock.advance(61)

    held = list(worker.renew(run).held.values())
    control.resume(database, worker.study, [0], new_request())

    assert held == [TIMED_OUT]
    assert list(worker.renew(run).held.values()) == [TIMED_OUT]


@pytest.mark.row("A14")
def test_next_claim_after_the_time_limit_stops_a_study_and_its_running_trials(database, clock):
    study = new_study(database, time_limit_s=3600.0)
    enqueued(database, study)
    clock.advance(10_000)  # does not count: no worker has started yet
    worker = SimulatedWorker(database, study)
    run = worker.take()

    clock.advance(3599)
    before = [run.report(0.5).verdict, worker.take().lease.number]
    clock.advance(1)

    assert before == [None, 1]
    assert worker.acquire() is None
    assert read_progress(database, study).status is Status.STOPPED
    assert list(worker.renew(run).held.values()) == [SPENT_BY_STUDY]


def test_renewal_stops_a_study_whose_time_limit_is_reached(database, clock):
    worker = limited(database, time_limit_s=3600.0)
    run = worker.take()
    clock.advance(3600)

    held = list(worker.renew(run).held.values())

    assert held == [SPENT_BY_STUDY]
    assert "time_limit_s is reached" in read_progress(database, worker.study).limit_reached


def test_study_that_is_paused_while_it_is_found_too_old_stays_paused(database, clock, monkeypatch):
    study = limited(database, time_limit_s=3600.0).study
    clock.advance(3600)
    begin, begun = database.begin, []

    def pause_before_the_second(**options):
        begun.append(options)
        if len(begun) == 2:
            with begin() as txn:
                txn.raw("UPDATE study SET status = 'PAUSED'")
        return begin(**options)

    monkeypatch.setattr(database, "begin", pause_before_the_second)
    stop_if_too_old(database, study)

    assert len(begun) == 2
    assert rows(database, "SELECT status FROM study") == [("PAUSED",)]


def test_age_of_a_study_counts_from_its_first_worker(database, clock):
    first = limited(database, time_limit_s=3600.0)
    clock.advance(3599)
    second = SimulatedWorker(database, first.study)

    assert second.take().report(0.5).verdict is None
    clock.advance(1)
    assert second.acquire() is None
    assert rows(database, "SELECT started_at FROM study") == rows(
        database, f"SELECT started_at FROM worker WHERE id = {first.id}"
    )


def test_study_goes_on_after_its_limit_is_raised_and_it_is_resumed(database):
    worker = limited(database, max_steps=3)
    other = worker.take()
    worker.take().finish(0.5, 0.5, 0.5)
    assert list(worker.renew(other).held.values()) == [SPENT_BY_STUDY]

    with pytest.raises(NotAllowed, match=r"max_steps is reached \(3 of 3 steps\).*max_steps=…"):
        resume(database, worker.study)
    set_limits(database, worker.study, {"max_steps": 5}, new_request())
    resume(database, worker.study)

    progress = read_progress(database, worker.study)
    assert (progress.status, progress.limit_reached) == (Status.RUNNING, None)
    assert list(worker.renew(other).held.values()) == [None]  # the verdict is withdrawn
    assert [other.report(0.5).verdict, other.report(0.5).verdict] == [None, SPENT]


def test_limits_are_read_from_the_row_and_not_from_the_memory_of_a_worker(database):
    worker = limited(database, max_steps=3)
    run = worker.take()

    set_limits(database, worker.study, {"max_steps": 2}, new_request())

    assert run.report(0.5, 0.5).verdict == SPENT


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_steps": 5}, "created without max_steps"),
        ({"cost_limit": CostLimit("eur", 50.0)}, "counted in 'usd', not in 'eur'"),
        ({"cost_limit": None}, "can be changed, not removed"),
    ],
)
def test_limit_cannot_be_added_removed_or_given_another_metric(database, limits, message):
    study = new_study(database, cost_limit=USD)

    with pytest.raises(NotAllowed, match=message):
        set_limits(database, study, limits, new_request())

    assert rows(database, "SELECT count(*) FROM event WHERE kind = 'limits set'") == [(0,)]


def test_study_that_a_person_has_stopped_is_not_stopped_again_by_its_limit(database):
    worker = limited(database, max_steps=1)
    run = worker.take()
    control.set_status(database, worker.study, Status.STOPPED, new_request())

    run.report(0.5)

    assert read_progress(database, worker.study).limit_reached is None


def test_paused_study_is_stopped_by_its_limit(database):
    worker = limited(database, max_steps=1)
    run = worker.take()
    control.set_status(database, worker.study, Status.PAUSED, new_request())

    verdict = run.report(0.5).verdict

    assert verdict == SPENT
    assert read_progress(database, worker.study).status is Status.STOPPED


def test_overview_shows_each_limit_with_what_is_used(database, clock):
    worker = limited(
        database, cost_limit=USD, max_steps=9, time_limit_s=7200.0, total_time_limit_s=600.0
    )
    run = worker.take()
    clock.advance(90)
    run.report(0.5, usd=2.5)

    assert read_overview(database, worker.study).limits == [
        "2.5 of 10 usd",
        "1 of 9 steps",
        "1 min 30 s of 10 min 0 s of training",
        "1 min 30 s of 2 h 0 min since the first worker started",
    ]


def test_concurrent_flushes_overshoot_by_at_most_one_flush_per_trial(storage_url):
    """Eight trials flush at the same time; the transaction of each flush reads the exact sum."""
    n_trials, limit = 8, 40
    database = connect(storage_url, connections=n_trials + 1)
    worker = limited(database, max_steps=limit)
    runs = [worker.take() for _ in range(n_trials)]

    def flush_until_stopped(run, rng):
        flushed = 0
        while retry_while_busy(lambda: run.report(*[0.5] * rng.randint(1, 2))).verdict is None:
            flushed += 1
            assert flushed <= limit
        return flushed

    run_together(
        [lambda run=run: flush_until_stopped(run, random.Random(run.lease.number)) for run in runs]
    )

    n_steps = spent(database)[1]
    counted = rows(database, "SELECT count(*) FROM result")[0][0]
    database.close()
    assert n_steps == counted
    assert limit <= n_steps <= limit + 2 * n_trials


def test_study_without_limits_counts_nothing(database):
    worker = limited(database)

    worker.take().finish(0.5)

    assert spent(database) == (0, 0, 0)
    assert rows(database, "SELECT running_s, running_until FROM trial") == [(None, None)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("2h", 7200.0), ("1.5d", 129600.0), (7, 7.0)],
)
def test_times_are_read_with_their_units(text, seconds):
    assert read_duration("time_limit_s", text) == seconds


@pytest.mark.parametrize(
    "value", ["", "ten", "10 weeks", 0, -1, float("nan"), True, "inf", 10**400]
)
def test_wrong_times_are_refused(value):
    with pytest.raises(InvalidSpec, match="time_limit_s is"):
        read_duration("time_limit_s", value)


@pytest.mark.parametrize(
    "value", [0, -1, True, 2.5, "", "1e3", 2**62, 10**400, "9" * 25, "9" * 5000]
)
def test_wrong_numbers_of_steps_are_refused(value):
    with pytest.raises(InvalidSpec, match="max_steps is"):
        read_max_steps("max_steps", value)


def test_cost_limits_are_read_as_pair_or_text():
    assert read_cost_limit("cost_limit", ("usd", 50)) == CostLimit("usd", 50.0)
    assert read_cost_limit("cost_limit", "usd <= 50") == CostLimit("usd", 50.0)
    for wrong in ("usd", "usd>=3", ("usd", 0), ("usd", "many"), 50, ["usd", True]):
        with pytest.raises(InvalidSpec, match="cost_limit is"):
            read_cost_limit("cost_limit", wrong)


def test_lost_trial_of_a_study_with_limits_is_recovered(database, clock):
    worker = limited(database, max_steps=100, total_time_limit_s=1e6)
    run = worker.take()
    run.report(0.5)

    assert recover_after_expiry(clock, database, worker.study, lease_s=LEASE_S) == 1
    assert run.trial().state is State.PENDING


@pytest.mark.parametrize(
    ("limits", "period_s"),
    [
        ({}, RENEWAL_S),
        ({"max_steps": 3}, RENEWAL_S),
        ({"trial_time_limit_s": 3600.0}, RENEWAL_S),
        ({"trial_time_limit_s": 100.0, "time_limit_s": 60.0}, 3.0),
        ({"total_time_limit_s": 2.0}, 1.0),
    ],
)
def test_leases_are_renewed_more_often_if_a_time_limit_is_short(limits, period_s):
    assert renewal_period_s(LEASE_S, new_spec(**limits)) == period_s


@pytest.mark.parametrize(("cost", "most", "n"), [(0.1, 1.0, 10), (0.01, 1.0, 100), (0.1, 0.3, 3)])
def test_costs_reach_a_limit_that_equals_their_exact_decimal_sum(database, cost, most, n):
    study = new_study(database, cost_limit=CostLimit("usd", most), num_trials=None)
    run = SimulatedWorker(database, study).take()

    for step in range(1, n + 1):
        assert read_progress(database, study).limit_reached is None
        run.report(1.0, first=step, usd=cost)

    assert "cost_limit is reached" in read_progress(database, study).limit_reached
