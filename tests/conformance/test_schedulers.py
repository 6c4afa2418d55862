"""
Every scheduler, through the real operations on both databases, in random orders with mishaps.

To have a scheduler tested, add a line to SCHEDULERS; docs/schedulers.md says how to write one.
"""

import pytest
from fleet.trainables.scheduling import BetterHalf, Cup
from harness.asked_scheduler import asked
from harness.row_invariants import broken_promises
from harness.scheduled_study import ScheduledStudy
from harness.sketches import HyperBand, MedianStopping

from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.states import Reason, State
from studydb.operations.reads import list_trials
from studydb.schedulers import ASHA, FIFO, UserScheduler, read

SCHEDULERS = {
    "FIFO": FIFO(),
    "ASHA": ASHA(max_t=9, reduction_factor=3),
    "ASHA with brackets": ASHA(max_t=8, reduction_factor=2, brackets=2),
    "ASHA by promotion": ASHA(max_t=9, reduction_factor=3, type="promotion"),
    "ASHA by promotion with brackets": ASHA(8, 1, 2, brackets=3, type="promotion"),
    "HyperBand": HyperBand(max_t=9),
    "HyperBand by halves": HyperBand(max_t=8, reduction_factor=2),
    "median stopping": MedianStopping(max_t=9),
    "custom, by rungs that close": asked(Cup()),
    "custom, with brackets": asked(Cup(brackets=3)),
    "custom, by medians": asked(BetterHalf()),
    "median stopping with a grace period": MedianStopping(max_t=12, grace_period=3, interval=2),
}
"""The schedulers under test, by name."""

GIVES_UP = {
    *("HyperBand", "HyperBand by halves"),
    *("custom, by rungs that close", "custom, with brackets"),
}
"""Schedulers that leave no trial PAUSED."""

ANY_ORDER = {"HyperBand", "HyperBand by halves"}
"""Schedulers that end each trial for the same reason in any order of reports."""

every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


@pytest.fixture
def scheduler(name, registered):
    chosen = SCHEDULERS[name]
    return chosen if isinstance(chosen, UserScheduler) else registered(chosen)


@every_scheduler
@pytest.mark.parametrize("seed", range(2))
def test_study_is_finished_after_any_mishaps(database, name, scheduler, seed):
    options = {"max_concurrent": 2} if seed % 2 else {}
    running = ScheduledStudy(database, scheduler, seed=seed, mishaps=0.15, cuts=0.1, **options)

    running.run()

    assert broken_promises(database, running.study) == {}
    assert running.results_after_a_decision() == []
    left = [by for _, by in running.paused()]
    assert scheduler.resumes or DecidedBy.SCHEDULER not in left
    assert name not in GIVES_UP or set(left) <= {DecidedBy.PERSON}


@every_scheduler
def test_workers_that_run_at_the_same_time_finish_a_study(database, storage_url, name, scheduler):
    running = ScheduledStudy(database, scheduler)
    database.clock = None  # as on the workers' connections, the database gives the time

    running.run_in_threads(storage_url)

    assert broken_promises(database, running.study) == {}
    assert running.results_after_a_decision() == []
    assert not running.paused() or (scheduler.resumes and name not in GIVES_UP)


@every_scheduler
def test_study_without_mishaps_ends_every_trial_or_leaves_it_at_a_rung(database, name, scheduler):
    running = ScheduledStudy(database, scheduler)

    running.run()

    ended = {one.reason for one in list_trials(database, running.study)}
    assert ended <= {Reason.COMPLETED, Reason.EARLY_STOPPED, Reason.GIVEN_UP, None}
    assert Reason.COMPLETED in ended
    assert not running.paused() or (scheduler.resumes and name not in GIVES_UP)


def distinct(number, step):
    """Different values for different trials, in an order that changes with the step."""
    return (number * 37 + step * 11) % 101


@pytest.mark.parametrize("name", sorted(ANY_ORDER))
def test_order_of_reports_does_not_change_how_trials_end(database, scheduler):
    ends = []
    for seed in range(2):
        running = ScheduledStudy(
            database, scheduler, seed=seed, num_trials=16, curve=distinct, skips=False
        )
        running.run()
        ends.append([one.reason for one in list_trials(database, running.study)])
    assert ends[0] == ends[1]


@every_scheduler
def test_scheduler_is_the_same_after_it_was_stored(scheduler):
    assert read(scheduler.to_json()) == scheduler


@every_scheduler
def test_study_ends_after_all_running_trials_have_failed_once(database, scheduler):
    running = ScheduledStudy(database, scheduler, num_trials=6)
    for _ in range(3):
        running._acquire()
    running._train(running.held[0])
    while running.held:
        running._end(running.held[0], Reason.FAILED)

    running.run()

    states = {one.state for one in list_trials(database, running.study)}
    assert State.PENDING not in states
    assert State.RUNNING not in states
