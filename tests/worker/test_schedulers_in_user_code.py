"""Schedulers in the user's code: their decisions, failures, refused definitions and signatures."""

import collections
import dataclasses
import os
import re
import signal
import sys

import pytest
from fleet.workers import TRAINABLES, eventually
from msgspec import structs

import studydb
from studydb.db.schema import trial
from studydb.domain.errors import Untrusted
from studydb.schedulers import UserScheduler
from studydb.settings import load_keyring
from studydb.worker.rule_code import trusted_code


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Put the folder of the trainables, which has the schedulers, on sys.path."""
    monkeypatch.syspath_prepend(str(TRAINABLES))
    yield
    sys.modules.pop("scheduling", None)


def create(stage, scheduler, **options):
    space = {"x": studydb.uniform(0, 1), **options.pop("space", {})}
    options = {"num_trials": 4, "searcher": studydb.RandomSearch(seed=1)} | options
    return stage.create("scheduling:curve", scheduler=scheduler, space=space, **options)


def cup(stage):
    return f"scheduling:Cup(max_t=9, folder='{stage.folder}')"


def asked(stage):
    """Return the decider's pid and the method's name for each call of the scheduler."""
    path = stage.folder / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


def ends(stage):
    """Return the last step and the reason of each trial, the best trial first."""
    rows = sorted(stage.rows(trial), key=lambda row: row.params["x"])
    return [(row.last_step, row.reason) for row in rows]


CUP_OF_FOUR = [(9, "COMPLETED"), (4, "GIVEN_UP"), (2, "GIVEN_UP"), (2, "GIVEN_UP")]


@pytest.mark.slow
@pytest.mark.row("E12")
def test_better_half_trains_on_although_worker_and_decider_are_killed(stage):
    study = create(stage, cup(stage), space={"pause_s": 0.1})
    worker = stage.start(slots=2)
    stage.await_result()
    eventually(lambda: asked(stage))
    os.kill(asked(stage)[-1][0], signal.SIGKILL)
    stage.await_trial(lambda row: (row.last_step or 0) >= 2, number=2)
    worker.kill()

    assert stage.run(slots=2) == 0

    assert ends(stage) == CUP_OF_FOUR
    assert study.status == "FINISHED"
    assert stage.events("study paused") == []
    assert len({pid for pid, _ in asked(stage)}) >= 3
    trained = collections.Counter((stage.folder / "trained").read_text().split("\n"))
    assert len([line for line, n in trained.items() if line and n > 2]) == 0


@pytest.mark.nightly
def test_status_and_wait_see_that_a_study_is_finished_and_run_no_scheduler_code(sqlite_stage):
    study = create(sqlite_stage, cup(sqlite_stage))

    assert sqlite_stage.run() == 0
    n_asked = len(asked(sqlite_stage))

    assert study.wait(timeout_s=5.0)
    assert "FINISHED" in sqlite_stage.command("status", "staged")
    assert len(asked(sqlite_stage)) == n_asked
    study.extend(num_trials=2)
    assert study.status == "RUNNING"
    assert sqlite_stage.run() == 0
    assert study.status == "FINISHED"
    assert len(sqlite_stage.events("scheduler idle")) == 2


@pytest.mark.slow
def test_own_loop_asks_the_scheduler(stage):
    study = create(stage, cup(stage))
    own = studydb.load_study("staged", storage=stage.storage)

    while (claimed := own.ask()) is not None:
        with claimed:
            for step in range(claimed.start_step + 1, 12):
                loss = claimed.params["x"] + 1 / step
                if not claimed.report({"loss": loss}, checkpoint={"step": step}):
                    break
    own.close()

    assert ends(stage) == CUP_OF_FOUR
    assert study.status == "FINISHED"


BROKEN_JUDGE = {
    "raises": "it raised KeyError: 'accuracy'",
    "sleeps": "it took more than 1 s",
    "kills_itself": "its process was killed by SIGKILL",
    "returns_none": "judge returned None; return a studydb.Decision",
    "other_rung": "judge records the report in the rung (0, 7), but it is at (0, 2)",
    "pauses_without_entry": "judge answered PAUSE with waits=False",
    "exploits": "judge asked for an exploit (action EXPLOIT), which studydb cannot do",
    "records_nan": "judge records the score NaN",
}

BROKEN_WORK = {
    "raises": "it raised KeyError: 'accuracy'",
    "sleeps": "it took more than 1 s",
    "kills_itself": "its process was killed by SIGKILL",
    "returns_none": "next_work returned None; return a trial of view.best_waiting",
    "keeps_a_negative_number": "next_work keeps -1 trials",
    "closes_an_unknown_rung": "next_work closes the rung (0, 7), which does not exist: no trial has reached it",
    "resumes_an_unknown_trial": "is not the best of those that wait",
}


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("how", "cause"), BROKEN_JUDGE.items())
def test_judge_that_fails_pauses_the_study_and_costs_no_trial_and_no_worker(
    sqlite_stage, how, cause
):
    stage = sqlite_stage
    scheduler = f"scheduling:Broken(how={how}, folder='{stage.folder}')"
    study = create(stage, scheduler, num_trials=2, max_failures=0)
    worker = stage.start()

    stage.await_state("TERMINATED")  # without a judgement, the trial trains to max_t

    assert study.status == "PAUSED"
    assert "has paused itself: on trial 0 at step 2, the scheduler scheduling:Broken(" in (
        stage.command("status", "staged")
    )
    assert cause in study.progress.pause_reason
    assert (stage.trial().reason, stage.trial().last_step) == ("COMPLETED", 9)
    assert len(stage.events("study paused")) == 1
    assert worker.runs

    stage.open_gate("corrected")
    study.resume()

    assert worker.exit_code(60.0) == 0, worker.output()
    assert len(stage.attempts(0)) == 1
    assert stage.trial(1).reason == "COMPLETED"
    assert "the scheduler has not decided, so the study pauses itself" in worker.output()


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("how", "cause"), BROKEN_WORK.items())
def test_next_work_that_fails_pauses_the_study_and_costs_no_trial_and_no_worker(
    sqlite_stage, how, cause
):
    stage = sqlite_stage
    scheduler = f"scheduling:Broken(how={how}, where=next_work, folder='{stage.folder}')"
    study = create(stage, scheduler, num_trials=2)
    study.enqueue({"x": 0.5})
    worker = stage.start()

    eventually(lambda: study.status == "PAUSED")

    assert "the scheduler scheduling:Broken(" in stage.command("status", "staged")
    assert cause in study.progress.pause_reason
    assert worker.runs

    stage.open_gate("corrected")
    study.resume()

    assert worker.exit_code(60.0) == 0, worker.output()
    assert sorted(row.reason for row in stage.rows(trial)) == ["COMPLETED", "GIVEN_UP"]
    assert {row.failures + row.losses for row in stage.rows(trial)} == {0}


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("schedulin:Cup()", "Python finds no module 'schedulin' from .*Did you mean 'scheduling'"),
        ("scheduling:Cop()", "scheduling.py has no 'Cop'"),
        ("scheduling:Cup(eta=3)", "unexpected keyword argument 'eta'. Correct it, and try again"),
        ("scheduling:WithoutJudge()", r"is not a class with a method judge\(report, view\)"),
        ("scheduling:Cup(milestones=[4, 2])", "give them in ascending order, each once"),
        ("scheduling:Cup(milestones=[2, 9])", "each must be below max_t, which is 9"),
        ("scheduling:Cup(milestones=[])", "needs milestones or an interval, but not both"),
        ("scheduling:Cup(brackets=60)", "all brackets together may have 100 rungs"),
        ("scheduling:Raising()", "Raising cannot be made: ValueError: no such file"),
    ],
)
def test_scheduler_that_cannot_be_used_is_refused_and_no_study_is_created(
    sqlite_stage, scheduler, message
):
    with pytest.raises(studydb.TrainableError, match=message):
        create(sqlite_stage, scheduler)
    with pytest.raises(studydb.UnknownStudy):
        studydb.load_study("staged", storage=sqlite_stage.storage)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("scheduling:Cup(9)", "An option of the scheduler scheduling:Cup has no name"),
        ("scheduling:Cup(max_t=ASHA(3))", "is itself a call; give plain values"),
        ("Cup(max_t=9)", "scheduler is 'Cup.max_t=9.'; give an object"),
        (studydb.CustomScheduler, "is not an object of a dataclass"),
    ],
)
def test_scheduler_that_cannot_be_read_is_refused(sqlite_stage, given, message):
    with pytest.raises(studydb.InvalidSpec, match=message):
        create(sqlite_stage, given)


@pytest.mark.nightly
def test_object_and_text_name_the_same_scheduler(sqlite_stage):
    from scheduling import Cup  # noqa: PLC0415  the fixture has made it importable

    study = create(sqlite_stage, Cup(max_t=9))
    given = "scheduling:Cup(max_t=9, milestones=[2,4], brackets=1, folder='')"

    same = create(sqlite_stage, given, load_if_exists=True)
    with pytest.warns(studydb.StudyDiffers, match=r"scheduler is scheduling:Cup\(max_t=9, "):
        create(sqlite_stage, "scheduling:Cup(max_t=8)", load_if_exists=True)

    assert same.record.scheduler == study.record.scheduler
    assert same.record.scheduler.plan.milestones == (2, 4)
    shown = sqlite_stage.command("show", "staged")
    assert re.search(r"^scheduler +scheduling:Cup\(max_t=9, ", shown, re.MULTILINE)


@pytest.mark.slow
def test_command_creates_a_study_with_a_scheduler_of_the_user(sqlite_stage, monkeypatch):
    monkeypatch.chdir(TRAINABLES)
    options = ["--trainable", "scheduling:curve", "--metric", "loss", "--mode", "min"]
    create(sqlite_stage, "scheduling:Cup()")

    sqlite_stage.command(
        *("create", "other", *options, "--num-trials", "2", "--param", "x=uniform(0, 1)"),
        *("--scheduler", "scheduling:Cup(max_t=5, milestones=[3])"),
    )

    shown = sqlite_stage.command("show", "other")
    assert re.search(
        r"^scheduler +scheduling:Cup\(max_t=5, milestones=\[3\]\)$", shown, re.MULTILINE
    )


def test_scheduler_that_was_changed_in_the_database_is_not_run(sqlite_stage):
    study = create(sqlite_stage, "scheduling:Cup()")
    with study.database.begin() as txn:
        txn.run_text("UPDATE trainable SET name = 'scheduling:Broken' WHERE role = 'scheduler'")
    changed = studydb.load_study("staged", storage=sqlite_stage.storage)

    with pytest.raises(studydb.NotAllowed, match=r"has the scheduler .*, but not its code"):
        trusted_code(changed.record, load_keyring())
    changed.close()


def test_scheduler_whose_description_was_changed_is_not_trusted(sqlite_stage):
    study = create(sqlite_stage, "scheduling:Cup()")
    changed = dataclasses.replace(
        study.record, scheduler_code=structs.replace(study.record.scheduler_code, workdir="/")
    )

    with pytest.raises(Untrusted, match="The scheduler 'scheduling:Cup' was changed after"):
        trusted_code(changed, load_keyring())


def test_clone_of_a_study_signs_its_scheduler_again(sqlite_stage):
    study = create(sqlite_stage, "scheduling:Cup()")

    clone = study.clone("clone")

    mine, other = study.record.scheduler_code, clone.record.scheduler_code
    assert isinstance(clone.record.scheduler, UserScheduler)
    assert mine.signatures != other.signatures
    (checked,) = trusted_code(clone.record, load_keyring())
    assert checked.trainable == other
    clone.close()
