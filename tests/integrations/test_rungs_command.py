"""`studydb rungs`, and what `show` and `status` say about rungs and the scheduler's decisions."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from harness import arrange
from harness.asked_scheduler import asked

from studydb import Action, CustomScheduler, Decision, Entry
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Mode, Reason
from studydb.domain.records import Batch
from studydb.domain.scheduling import Close
from studydb.lease.acquire import Acquirer
from studydb.operations.close_rung import close_rung
from studydb.operations.control import pause, resume
from studydb.operations.finish import finish
from studydb.operations.give_up import give_up
from studydb.operations.invalidate import invalidate
from studydb.operations.promote import promote
from studydb.schedulers import ASHA, HyperBand, MedianStopping
from studydb.store import rung_listing

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0)


@pytest.fixture
def wait(database):
    """
    A function that creates a study and a worker, and returns them.

    For each given value, one trial of the study reports this value at step 1, and its attempt ends.
    """

    def make(*values, scheduler=PROMOTION, **options):
        study = arrange.new_study(database, name="digits", scheduler=scheduler, **options)
        worker = arrange.SimulatedWorker(database, study)
        for value in values:
            run = worker.take()
            run.report(value)
            run.finish(outcome=Reason.PREEMPTED)
        return study, worker

    return make


def test_rungs_lists_the_entries_and_the_cutoff_of_each_rung(console, wait):
    wait(0.5, 0.25, math.nan, 0.75, 1.0)

    (rung,) = console("rungs", "digits", "--format", "json").json
    page = console("rungs", "digits")

    assert (rung["bracket"], rung["step"], rung["closed_at"]) == (0, 1, None)
    assert (rung["entries"], rung["ranked"], rung["waiting"]) == (5, 4, 4)
    assert rung["top"] == pytest.approx(1 / 3)
    assert (rung["cutoff"], rung["best"], rung["kept"]) == (0.5, 0.25, None)
    assert page.lines[0].split()[:5] == ["bracket", "step", "entries", "ranked", "waiting"]
    assert max(map(len, page.lines)) <= 80
    assert "  studydb rungs digits" in console("status", "digits").lines
    assert console("rungs", "digits", "--format", "csv").lines[1].startswith("0,1,5,4,4,")


def test_cutoffs_are_shown_as_metric_values_also_if_higher_values_are_better(console, wait):
    wait(0.5, 0.25, 0.75, 1.0, mode=Mode.MAX)

    (rung,) = console("rungs", "digits", "--format", "json").json

    assert (rung["cutoff"], rung["best"]) == (0.75, 1.0)


def test_invalidated_trials_are_entries_without_a_rank(console, database, wait):
    study, _ = wait(0.5, 0.25, 0.75)
    invalidate(database, study, [1], arrange.new_request(), reason="wrong labels")

    (rung,) = console("rungs", "digits", "--format", "json").json
    document = console("show", "digits", "1", "--format", "json").json

    assert (rung["entries"], rung["ranked"], rung["best"]) == (3, 2, 0.5)
    assert document["judged"][0]["rank"] is None


def test_show_says_from_which_rung_a_trial_was_promoted(console, database, wait):
    study, worker = wait(0.5, 0.25, 0.75, 0.8)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=arrange.LEASE_S)

    number = acquirer.acquire().lease.number

    assert number == 1
    shown = console("show", "digits", "1").out
    rank = "the trial now has rank 1 of 4 there"
    assert f"at rung 1 was 0.25; {rank}; the scheduler has promoted" in shown
    (rung,) = console("rungs", "digits", "--format", "json").json
    assert rung["waiting"] == 3


def test_rungs_shows_the_bracket_of_each_rung_and_what_was_kept_when_a_rung_closed(
    console, database, wait
):
    study, worker = wait(0.0, 0.1, 0.2, 0.3, scheduler=HyperBand(4, 2), num_trials=7)
    worker.take().pause(0.9, 0.4)  # the first trial of the next bracket, whose rung is at step 2
    Acquirer(database, study, worker_id=worker.id, lease_s=arrange.LEASE_S).acquire()

    closed, opened = console("rungs", "digits", "--format", "json").json

    assert (closed["bracket"], closed["step"], closed["kept"]) == (0, 1, 0.1)
    assert (closed["top"], closed["cutoff"]) == (None, None)  # HyperBand has no cutoffs
    assert closed["closed_at"] is not None
    assert (opened["bracket"], opened["step"], opened["kept"]) == (1, 2, None)
    assert console("rungs", "digits", "--limit", "1", "--format", "json").json == [opened]
    assert "at rung 2 of bracket 1 was 0.4" in console("show", "digits", "4").out


def test_show_says_what_a_trial_waits_for_at_a_rung_that_closes(console, database, wait):
    study, worker = wait(0.0, 0.1, scheduler=HyperBand(4, 2), num_trials=7)
    assert "until the rung closes and keeps the best trials" in console("show", "digits", "1").out
    worker.wait_at_the_rung(0.2, 0.3)

    close_rung(database, study, Close(RungKey(0, 1), keep=2))

    assert "the rung has kept the trial, and a free worker resumes" in why(console, 1)
    assert "the rung closed without keeping this trial, and a free worker ends it" in why(
        console, 2
    )
    give_up(database, study)
    assert why(console, 2).endswith(
        "; the trial now has rank 3 of 4 there; the rung closed without keeping this trial"
    )


def why(console, number):
    return console("show", "digits", str(number), "--format", "json").json["why"]


def test_status_says_in_words_what_the_scheduler_has_decided_last(console, database, wait):
    study, worker = wait(0.5, 0.25, 0.75, 0.8)
    later = datetime.now(UTC) + timedelta(seconds=1)
    # SQLite stores times in milliseconds; the promotion must not get the time of a report.
    database.clock = lambda: later
    Acquirer(database, study, worker_id=worker.id, lease_s=arrange.LEASE_S).acquire()

    page = console("status", "digits")
    decisions = console("status", "digits", "--format", "json").json["decisions"]

    assert [one["number"] for one in decisions] == [1, 3, 2, 0]
    at = page.lines.index("Last decisions of the scheduler:")
    assert page.lines[at + 1 : at + 3] == [
        "  trial 1, RUNNING: loss (min) at rung 1 was 0.25; the trial now has rank 1 of 4",
        "    there; the scheduler has promoted the trial",
    ]
    assert max(map(len, page.lines[at : at + 9])) <= 80
    assert decisions[1]["why"] == why(console, 3)
    assert (decisions[1]["rung"], decisions[1]["rank"], decisions[1]["n_ranked"]) == (1, 4, 4)


def test_status_does_not_explain_trials_that_a_person_has_paused(console, database, wait):
    study, worker = wait(0.5, 0.25, 0.75, 0.8)
    run = Acquirer(database, study, worker_id=worker.id, lease_s=arrange.LEASE_S).acquire()
    pause(database, study, [0, 1], arrange.new_request())
    finish(
        database,
        study,
        lease=run.lease,
        outcome=Reason.PREEMPTED,
        batch=Batch(1, (), 1, None),
        tally=None,
    )

    decisions = console("status", "digits", "--format", "json").json["decisions"]

    assert [one["number"] for one in decisions] == [3, 2]


def test_status_says_why_trials_were_stopped(console, database):
    study = arrange.new_study(database, name="digits", scheduler=ASHA(max_t=9, reduction_factor=3))
    worker = arrange.SimulatedWorker(database, study)
    for value in (0.5, 0.7, math.nan):
        run = worker.ask()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)

    decisions = console("status", "digits", "--format", "json").json["decisions"]

    assert [(one["number"], one["reason"]) for one in decisions] == [
        (2, "EARLY_STOPPED"),
        (1, "EARLY_STOPPED"),
    ]
    assert "was NaN, which counts as the worst value" in decisions[0]["why"]
    assert "was 0.7, worse than the cutoff 0.5 of the earlier" in decisions[1]["why"]


@pytest.mark.slow
def test_status_shows_five_decisions_and_finds_the_promotion_of_an_old_trial(
    console, database, wait
):
    values = [0.1, *[1.0] * (rung_listing.NEWEST + 5)]
    study, worker = wait(*values, num_trials=None)
    shown = console("status", "digits", "--format", "json").json["decisions"]
    assert len(shown) == 5
    assert 0 not in [one["number"] for one in shown]

    promote(database, study, worker.claimant())

    shown = console("status", "digits", "--format", "json").json["decisions"]
    assert (shown[0]["number"], shown[0]["state"]) == (0, "PENDING")


def test_reason_that_a_custom_scheduler_gives_is_shown_after_the_schedulers_name(console, database):
    study = arrange.new_study(database, name="digits", scheduler=asked(Talking()))
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5)
    run.finish(outcome=Reason.PREEMPTED)

    (event,) = arrange.rows(database, "SELECT data FROM event WHERE kind = 'judged'")

    said = f"; {study.scheduler}: too slow for \x1b[31mus"
    rank = "the trial now has rank 1 of 1 there"
    assert why(console, 0) == f"loss (min) at rung 1 was 0.5; {rank}{said}"
    assert "too slow for \\x1b[31mus" in console("show", "digits", "0").out
    page = " ".join(console("status", "digits").out.split())
    assert "trial 0, EARLY_STOPPED: loss (min) at rung 1 was 0.5" in page
    assert "too slow for \\x1b[31mus" in page
    assert event


@dataclass(frozen=True)
class Talking(CustomScheduler):
    """Stop each trial, and say why."""

    milestones = (1, 2)

    def judge(self, report, view):
        return Decision(
            Action.STOP, entry=Entry(view.key, report.score), why="too slow for \x1b[31mus."
        )


def test_rungs_says_that_a_study_has_no_rungs_yet(console, wait):
    wait(scheduler=ASHA(max_t=9))

    assert console("rungs", "digits").lines == ["no rungs"]


def test_rank_is_one_more_than_the_number_of_strictly_better_trials(console, wait):
    wait(0.5, 0.25, 0.5, 0.75)

    ranks = [
        console("show", "digits", str(number), "--format", "json").json["judged"][0]["rank"]
        for number in range(4)
    ]

    assert ranks == [2, 1, 2, 4]


def test_show_says_that_a_closed_rung_had_kept_no_trial(console, database):
    study = arrange.new_study(database, name="digits", scheduler=HyperBand(4, 2), num_trials=6)
    late = arrange.enqueued(database, study)  # bracket 0, like the first four draws
    pause(database, study, [late], arrange.new_request())
    worker = arrange.SimulatedWorker(database, study)
    for value in (math.nan, math.nan, math.nan, math.nan):
        run = worker.take()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    promote(database, study, worker.claimant())
    resume(database, study, [late], arrange.new_request())
    run = worker.take()
    run.report(0.2)
    run.finish(outcome=Reason.PREEMPTED)

    pages = [console("show", "digits", str(number)).out for number in (late, 1)]

    assert (
        "loss (min) at rung 1 was 0.2; the rung had closed before, and had kept no trial"
        in pages[0]
    )
    assert "loss (min) at rung 1 was NaN, which counts as the worst value" in pages[1]


def test_show_lists_the_last_hundred_judgements_of_a_trial(console, wait):
    _, worker = wait(scheduler=MedianStopping())
    worker.take().report(*[0.5] * 102)

    document = console("show", "digits", "0", "--format", "json").json

    assert [one["rung"] for one in document["judged"]] == list(range(3, 103))
