"""`studydb rungs`, and what `show` says of rungs, on SQLite and on PostgreSQL."""

import math

import pytest
from harness import arrange

from studydb.domain.life.states import Mode, Reason
from studydb.lease.acquire import Acquirer
from studydb.operations.invalidate import invalidate
from studydb.schedulers import ASHA, HyperBand

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0)


@pytest.fixture
def wait(database):
    """A function that makes trials with these values wait at the first rung of a study."""

    def make(*values, scheduler=PROMOTION, **options):
        study = arrange.new_study(database, name="digits", scheduler=scheduler, **options)
        worker = arrange.SimulatedWorker(database, study)
        for value in values:
            run = worker.take()
            run.report(value)
            run.finish(outcome=Reason.PREEMPTED)
        return study, worker

    return make


def test_rungs_lists_occupancy_and_cutoffs(console, wait):
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


def test_cutoffs_are_values_also_if_higher_values_are_better(console, wait):
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
    assert "at rung 1 was 0.25, rank 1 of 4 there now; the scheduler has promoted" in shown
    (rung,) = console("rungs", "digits", "--format", "json").json
    assert rung["waiting"] == 3


def test_rungs_shows_what_was_kept_when_a_rung_closed_and_the_bracket_of_each_rung(
    console, database, wait
):
    study, worker = wait(0.0, 0.1, 0.2, 0.3, scheduler=HyperBand(4, 2), num_trials=7)
    run = worker.take()  # the first trial of the next bracket, which begins at step 2
    run.report(0.9, 0.4)
    run.finish(outcome=Reason.PREEMPTED)
    Acquirer(database, study, worker_id=worker.id, lease_s=arrange.LEASE_S).acquire()

    closed, opened = console("rungs", "digits", "--format", "json").json

    assert (closed["bracket"], closed["step"], closed["kept"]) == (0, 1, 0.1)
    assert closed["closed_at"] is not None
    assert (opened["bracket"], opened["step"], opened["kept"]) == (1, 2, None)
    assert console("rungs", "digits", "--limit", "1", "--format", "json").json == [opened]
    assert "at rung 2 of bracket 1 was 0.4" in console("show", "digits", "4").out


def test_study_without_rungs_has_none(console, wait):
    wait(scheduler=ASHA(max_t=9))

    assert console("rungs", "digits").lines == ["no rungs"]


def test_rank_of_a_trial_counts_the_strictly_better_ones(console, wait):
    wait(0.5, 0.25, 0.5, 0.75)

    ranks = [
        console("show", "digits", str(number), "--format", "json").json["judged"][0]["rank"]
        for number in range(4)
    ]

    assert ranks == [2, 1, 2, 4]
