"""The scheduler of docs/custom-schedulers.md judges as the page says, and its studies end."""

import math

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study
from harness.asked_scheduler import asked
from harness.documented_code import names_defined_in
from harness.row_invariants import broken_promises
from harness.scheduled_study import ScheduledStudy

from studydb.domain.life.states import FINAL, Reason, State
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.promote import promote
from studydb.operations.reads import list_trials

Heats = names_defined_in("custom-schedulers.md")["Heats"]


def value(number, step):
    return (number * 37 + step) % 101


def reasons(running):
    return [one.reason for one in list_trials(running.database, running.study)]


@pytest.mark.parametrize("num_trials", [1, 3, 4, 6, 9])
def test_best_of_the_first_four_trials_goes_on_and_so_does_each_later_trial_that_is_not_worse(
    database, num_trials
):
    scheduler = asked(Heats(max_t=5))
    running = ScheduledStudy(database, scheduler, num_trials=num_trials, curve=value, skips=False)

    running.run(slots=1)

    ended = reasons(running)
    first = min(range(min(4, num_trials)), key=lambda n: value(n, 2))
    assert [n for n, reason in enumerate(ended[:4]) if reason is Reason.COMPLETED] == [first]
    for number, reason in enumerate(ended[4:], 4):
        as_good = value(number, 2) <= value(first, 2)
        assert reason is (Reason.COMPLETED if as_good else Reason.EARLY_STOPPED)


@pytest.mark.parametrize("seed", range(4))
def test_study_ends_although_trials_fail_or_are_lost_and_people_steer_trials(database, seed):
    scheduler = asked(Heats(max_t=5, winners=2))
    running = ScheduledStudy(database, scheduler, seed=seed, mishaps=0.2, cuts=0.1)

    running.run()

    left = [one for one in list_trials(database, running.study) if one.state not in FINAL]
    assert all(one.paused_by == "person" for one in left)
    assert broken_promises(database, running.study) == {}


def test_study_ends_although_every_trial_reports_nan(database):
    running = ScheduledStudy(
        database, asked(Heats(max_t=5)), num_trials=6, curve=lambda *_: math.nan, skips=False
    )

    running.run()

    assert set(reasons(running)) == {Reason.EARLY_STOPPED}


@pytest.fixture
def endless(database):
    """
    A study without `num_trials`, its worker, and a function that runs a trial for each argument.

    Each trial is new, reports 1.0 at step 1 and the argument at step 2, and is then given back. The
    function returns the states of all trials of the study.
    """
    study = new_study(database, scheduler=asked(Heats(max_t=5)), num_trials=None)
    worker = SimulatedWorker(database, study)

    def train(*values):
        for loss in values:
            run = worker.ask()
            run.report(1.0, loss)
            run.finish(outcome=Reason.PREEMPTED)
        return [one.state for one in list_trials(database, study)]

    return study, worker, train


def test_winner_trains_on_in_a_study_without_num_trials(database, endless):
    study, worker, train = endless
    train(0.3, 0.1, 0.2, 0.4)

    number = Acquirer(database, study, worker_id=worker.id, lease_s=90.0).acquire().lease.number

    assert number == 1
    assert train(0.05)[-1] is State.PENDING  # better than the winner (0.1), so not stopped


def test_rung_whose_trials_were_all_stopped_by_hand_waits_for_new_trials(database, endless):
    study, worker, train = endless
    train(0.3, 0.1, 0.2, 0.4)
    control.stop(database, study, [0, 1, 2, 3], new_request())

    promote(database, study, worker.claimant())

    assert train(0.9)[-1] is State.PAUSED
    assert promote(database, study, worker.claimant()) == "claim"
    assert list_trials(database, study)[-1].state is State.PENDING
