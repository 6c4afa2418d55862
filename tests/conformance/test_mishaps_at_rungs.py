"""
The matrix of schedulers and mishaps, on both databases: every mishap happens at a rung.

In each test, four trials report at the first rung or after it, and a mishap happens before or after
the trials obey their verdicts. In most tests, the mishap happens to the best or the worst trial.
Then workers run the study to its end.
"""

import math
from contextlib import suppress

import pytest
from harness.arrange import new_request, rows
from harness.row_invariants import broken_promises
from harness.scheduled_study import ScheduledStudy
from harness.scheduler_calls import DECIDED, SCHEDULERS

from studydb.domain.errors import NotAllowed
from studydb.domain.life.states import FINAL, Reason, State
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.invalidate import invalidate
from studydb.operations.reads import list_trials
from studydb.operations.retry import retry

pytestmark = pytest.mark.sampled(2)

IGNORES_NAN = {"median stopping", "median stopping that pauses", "custom, by medians"}
"""Schedulers that do not stop a trial that reports NaN."""

KEEPS_ALL_EQUAL = {name for name in SCHEDULERS if not SCHEDULERS[name].resumes}
"""Schedulers that end no trial early if all scores are equal."""

LEAVES_PAUSED = {"promotion", "promotion with an end game", "median stopping that pauses"}
"""Schedulers that may leave trials PAUSED."""


def falling(number, step):
    """The value of a trial at a step: of the trials 0 to 3, trial 2 is the best."""
    return (3, 1, 0, 2, 6, 5, 4, 7)[number % 8] / 8 + 1 / step


class AtFirstRung:
    """
    A study of six trials, of which the trials with the numbers 0 to 3 run.

    By default, `report` takes these four to the first rung, at step 1: trial 2 is the best there,
    trial 0 the worst.
    """

    BEST, WORST = 2, 0

    def __init__(self, database, name):
        self.database, self.name = database, name
        self.running = ScheduledStudy(
            database, SCHEDULERS[name], num_trials=6, curve=falling, skips=False, max_failures=0
        )
        self.study = self.running.study
        for _ in range(4):
            assert self.running._acquire()
        self.runs = list(self.running.held)
        self.batches, self.answers = {}, {}

    def report(self, *numbers, value=None, first=1):
        for number in numbers or range(4):
            run = self.runs[number]
            value_now = falling(number, first) if value is None else value
            self.batches[number] = run.batch(value_now, first=first)
            self.answers[number] = run.send(self.batches[number])

    def obey(self):
        """End the attempts that have a verdict."""
        for number, answer in self.answers.items():
            if answer.verdict is not None:
                self.running._end(self.runs[number], Reason.PREEMPTED)

    def run_to_the_end(self):
        self.running.run(slots=4)
        assert broken_promises(self.database, self.study) == {}
        assert self.running.results_after_a_decision() == []
        by_scheduler = [by for _, by in self.running.paused() if by == "scheduler"]
        assert not by_scheduler or self.name in LEAVES_PAUSED

    def ask(self, operation, *arguments, **more):
        operation(self.database, self.study, *arguments, new_request(), **more)

    def trial(self, number):
        return next(one for one in self.trials() if one.number == number)

    def trials(self):
        return list_trials(self.database, self.study)

    def entries(self, number):
        """A trial's entries, each as (milestone, step, attempt, score, ranked, waiting)."""
        return rows(
            self.database,
            "SELECT g.step, e.step, e.attempt, e.score, e.ranked, e.waiting FROM rung_entry e "
            "JOIN rung g ON g.id = e.rung_id JOIN trial t ON t.id = e.trial_id "
            f"WHERE t.study_id = {self.study.id} AND t.number = {number} ORDER BY g.step",
        )

    def decided(self):
        return [rows(self.database, sql.format(study=self.study.id)) for sql in DECIDED]


@pytest.fixture(params=SCHEDULERS)
def at_rung(database, request):
    return AtFirstRung(database, request.param)


def test_late_resend_of_results_changes_nothing(at_rung):
    at_rung.report()
    before = at_rung.decided()

    for number, batch in at_rung.batches.items():
        at_rung.runs[number].send(batch)

    assert at_rung.decided() == before
    at_rung.run_to_the_end()


@pytest.mark.parametrize("number", [AtFirstRung.BEST, AtFirstRung.WORST])
def test_trial_that_fails_at_a_rung_holds_up_no_other_trial(at_rung, number):
    at_rung.report()
    run = at_rung.runs[number]
    at_rung.running.held.remove(run)
    run.finish(outcome=Reason.FAILED)

    at_rung.run_to_the_end()

    assert Reason.COMPLETED in {one.reason for one in at_rung.trials()}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", [AtFirstRung.BEST, AtFirstRung.WORST])
@pytest.mark.parametrize("waits", [False, True], ids=["before it pauses", "while it waits"])
def test_trial_that_a_person_stops_at_a_rung_ends_and_is_never_promoted(at_rung, number, waits):
    at_rung.report()
    if waits:
        at_rung.obey()
    with suppress(NotAllowed):  # raised if the scheduler has already stopped the trial
        at_rung.ask(control.stop, [number])

    at_rung.run_to_the_end()

    trial = at_rung.trial(number)
    assert trial.state is State.TERMINATED
    assert trial.reason in (Reason.CANCELLED, Reason.EARLY_STOPPED)
    assert trial.attempt == 1
    assert not any(waiting for *_, waiting in at_rung.entries(number))


@pytest.mark.parametrize("number", [AtFirstRung.BEST, AtFirstRung.WORST])
def test_trial_that_a_person_pauses_at_a_rung_goes_on_when_resumed_unless_the_scheduler_has_decided(
    at_rung, number
):
    at_rung.report()
    at_rung.ask(control.pause, [number])

    at_rung.run_to_the_end()

    trial = at_rung.trial(number)
    assert trial.state in (State.PAUSED, State.TERMINATED)
    if trial.state is State.PAUSED and trial.paused_by == "person":
        at_rung.ask(control.resume, [number])
        at_rung.run_to_the_end()
        trial = at_rung.trial(number)
    assert trial.state in FINAL or trial.paused_by == "scheduler"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", [AtFirstRung.BEST, AtFirstRung.WORST])
@pytest.mark.parametrize("waits", [False, True], ids=["before it pauses", "while it waits"])
def test_invalidated_trial_leaves_the_rung(at_rung, number, waits):
    at_rung.report()
    if waits:
        at_rung.obey()
    at_rung.ask(invalidate, [number], reason="wrong labels")

    at_rung.run_to_the_end()

    assert at_rung.trial(number).state is State.TERMINATED
    assert not any(ranked or waiting for *_, ranked, waiting in at_rung.entries(number))


def test_reinstated_trial_ranks_again(at_rung):
    at_rung.report()
    at_rung.ask(invalidate, [at_rung.BEST], reason="wrong labels")
    at_rung.ask(invalidate, [at_rung.BEST], reason="", undo=True)

    at_rung.run_to_the_end()

    assert all(ranked for *_, ranked, _ in at_rung.entries(at_rung.BEST))


def test_trial_that_reports_nan_at_a_rung_is_not_ranked_there_and_is_never_promoted(at_rung):
    at_rung.report(1, 3)
    at_rung.report(at_rung.BEST, value=math.nan)
    at_rung.report(at_rung.WORST)

    at_rung.run_to_the_end()

    assert not any(ranked for _, step, *_, ranked, _ in at_rung.entries(2) if step == 1)
    if at_rung.name not in IGNORES_NAN:
        assert at_rung.trial(at_rung.BEST).reason is Reason.EARLY_STOPPED
        assert at_rung.trial(at_rung.BEST).summary.last_step == 1


def test_schedulers_that_only_stop_trials_stop_none_if_all_scores_are_equal(at_rung):
    at_rung.running.curve = lambda *_: 0.5
    at_rung.report(value=0.5)

    at_rung.run_to_the_end()

    ended = [one.reason for one in at_rung.trials()]
    assert Reason.COMPLETED in ended
    assert at_rung.name not in KEEPS_ALL_EQUAL or Reason.EARLY_STOPPED not in ended


def test_trial_that_skips_a_rung_enters_the_rung_that_it_has_reached(at_rung):
    at_rung.report(1, 2, 3)
    at_rung.report(at_rung.WORST, first=4)

    expected = at_rung.study.scheduler.locks(0, 4)
    assert [milestone for milestone, *_ in at_rung.entries(0)] == [key.step for key in expected]
    at_rung.run_to_the_end()


def test_trial_that_reports_the_step_of_a_rung_again_is_not_judged_again(at_rung):
    """All attempts are lost before they have saved; the next attempts report other values."""
    at_rung.report()
    before = [at_rung.entries(number)[0] for number in range(4)]
    at_rung.running.held.clear()
    at_rung.running._recover()
    at_rung.running.curve = lambda number, step: falling(number, step) + 0.05

    at_rung.run_to_the_end()

    assert any(one.attempt > 1 for one in at_rung.trials())
    assert [at_rung.entries(number)[0][:5] for number in range(4)] == [one[:5] for one in before]


def test_enqueued_trials_and_trials_of_an_extended_study_are_judged(at_rung):
    at_rung.report()
    at_rung.ask(enqueue, {"lr": 0.5})
    at_rung.ask(control.extend, n_more=2)

    at_rung.run_to_the_end()
    at_rung.ask(control.extend, n_more=1)
    at_rung.run_to_the_end()

    assert len(at_rung.trials()) == 9
    assert all(at_rung.entries(number) for number in range(9))


def test_clone_takes_the_place_of_its_parent_at_the_rung(at_rung):
    at_rung.report()
    at_rung.ask(control.stop, [at_rung.BEST])
    at_rung.run_to_the_end()
    at_rung.ask(retry, [at_rung.BEST], from_scratch=True)

    at_rung.run_to_the_end()

    assert not any(ranked for *_, ranked, _ in at_rung.entries(at_rung.BEST))
    assert at_rung.entries(6)
