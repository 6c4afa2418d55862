"""
Run studies with every scheduler on both databases, with and without mishaps.

The operations of a study run in a random order. To have a scheduler tested, add a line to
SCHEDULERS; docs/schedulers.md says how to write a scheduler.
"""

import pytest
from fleet.trainables.scheduling import BetterHalf, Cup
from harness.arrange import rows
from harness.asked_scheduler import asked
from harness.row_invariants import broken_promises
from harness.scheduled_study import ScheduledStudy
from harness.scheduler_calls import DECIDED

from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.states import Reason, State
from studydb.operations.reads import list_trials
from studydb.schedulers import (
    ASHA,
    FIFO,
    HyperBand,
    MedianStopping,
    OneEpoch,
    UserScheduler,
    read,
)

SCHEDULERS = {
    "FIFO": FIFO(),
    "ASHA": ASHA(max_t=9, reduction_factor=3),
    "ASHA with brackets": ASHA(max_t=8, reduction_factor=2, brackets=2),
    "ASHA by Syne Tune's rule": ASHA(max_t=9, reduction_factor=2, rule="syne_tune"),
    "ASHA by promotion": ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0),
    "ASHA by promotion with an end game": ASHA(9, 1, 3, type="promotion", end_game=0.5),
    "ASHA by promotion with brackets": ASHA(8, 1, 2, brackets=3, type="promotion"),
    "HyperBand": HyperBand(max_t=9),
    "HyperBand by halves": HyperBand(max_t=8, reduction_factor=2),
    "HyperBand whose max_t is no power of 2.5": HyperBand(max_t=11, reduction_factor=2.5),
    "one-epoch": OneEpoch(i=2, top_k=3, max_t=9),
    "custom, by rungs that close": asked(Cup()),
    "custom, by rungs that close, with brackets": asked(Cup(brackets=3)),
    "custom, by medians": asked(BetterHalf()),
    "median stopping": MedianStopping(),
    "median stopping with a grace period": MedianStopping(grace_period=3, interval=2),
    "median stopping that pauses": MedianStopping(grace_period=2, hard_stop=False),
}
"""The schedulers under test, by name."""

GIVES_UP = {
    name
    for name in SCHEDULERS
    if name.startswith(("HyperBand", "one-epoch", "custom, by rungs that close"))
}
"""Schedulers that resume or end every trial that they have paused."""

LEAVES_PAUSED = {name for name, one in SCHEDULERS.items() if one.resumes} - GIVES_UP | {
    "median stopping that pauses"
}
"""Schedulers that may leave trials PAUSED."""

ANY_ORDER = GIVES_UP
"""Schedulers with which the order of the reports does not change why a trial ends."""

every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


@pytest.fixture
def scheduler(name, registered):
    chosen = SCHEDULERS[name]
    return chosen if isinstance(chosen, UserScheduler) else registered(chosen)


@pytest.mark.sampled(8)
@every_scheduler
@pytest.mark.parametrize("seed", range(2))
def test_study_is_finished_after_any_mishaps(database, name, scheduler, seed):
    options = {"max_concurrent": 2} if seed % 2 else {}
    running = ScheduledStudy(database, scheduler, seed=seed, mishaps=0.15, cuts=0.1, **options)

    running.run()

    assert broken_promises(database, running.study) == {}
    assert running.results_after_a_decision() == []
    left = {by for _, by in running.paused()}
    assert name in LEAVES_PAUSED or DecidedBy.SCHEDULER not in left
    assert name not in GIVES_UP or left <= {DecidedBy.PERSON}


@pytest.mark.sampled(6)
@every_scheduler
def test_workers_that_run_at_the_same_time_finish_a_study(database, storage_url, name, scheduler):
    running = ScheduledStudy(database, scheduler)
    database.clock = None  # the database gives the time, as it does on the workers' connections

    running.run_in_threads(storage_url)

    assert broken_promises(database, running.study) == {}
    assert running.results_after_a_decision() == []
    assert not running.paused() or name in LEAVES_PAUSED


@pytest.mark.sampled(6)
@every_scheduler
def test_study_without_mishaps_ends_every_trial_or_leaves_it_at_a_rung(database, name, scheduler):
    running = ScheduledStudy(database, scheduler)

    running.run()

    ended = {one.reason for one in list_trials(database, running.study)}
    assert ended <= {Reason.COMPLETED, Reason.EARLY_STOPPED, Reason.GIVEN_UP, None}
    assert Reason.COMPLETED in ended
    assert not running.paused() or name in LEAVES_PAUSED


@pytest.mark.sampled(6)
@every_scheduler
def test_calls_that_are_cut_and_sent_again_change_no_decision(database, name, scheduler):
    decided = []
    for cuts in (0.0, 0.6):
        running = ScheduledStudy(database, scheduler, seed=3, num_trials=6, cuts=cuts)
        running.run()
        of_study = {"study": running.study.id}
        decided.append([rows(database, sql.format(**of_study)) for sql in DECIDED])

    assert decided[0] == decided[1]


def distinct(number, step):
    """Return a value that differs between trials; which trial is better changes with the step."""
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
