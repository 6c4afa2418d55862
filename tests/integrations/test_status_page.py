"""What `status` and `workers` print about dead processes, problems, pace and what to do next."""

import math
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from harness import arrange

from studydb.analysis.overview_text import pace_text, time_text
from studydb.domain.failures import Failure
from studydb.domain.life.states import Reason, Status
from studydb.domain.space.search_space import Space, choice
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations import control
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.control import set_status
from studydb.operations.overview import read_overview
from studydb.operations.record_event import record_event
from studydb.operations.register import leave
from studydb.operations.study_progress import read_progress
from studydb.processes import process_record, start_of, this_process
from studydb.searchers import GridSearch
from studydb.store import checkpoints, overview


@pytest.fixture
def local_worker():
    """The record of a local process, for a worker's row, and a function that kills the process."""
    popen = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def kill():
        popen.kill()
        popen.wait()

    yield process_record(popen.pid, start_of(popen.pid)), kill
    kill()
    popen.stdin.close()


def test_killed_worker_of_this_host_is_shown_as_dead_before_its_lease_expires(
    console, database, local_worker
):
    process, kill = local_worker
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study, of=process).take()
    arrange.SimulatedWorker(database, study)  # a worker of another host
    assert "workers  2 alive" in console("status", "digits").lines

    kill()

    assert "workers  1 alive, 1 dead" in console("status", "digits").lines
    assert console("status", "digits", "--format", "json").json["workers_alive"] == 1
    shown = console("workers", "digits", "--format", "json").json
    assert [row["health"] for row in shown] == ["alive", "dead"]


def test_status_suggests_the_worker_command_if_no_worker_lives(console, database, local_worker):
    process, kill = local_worker
    study = arrange.new_study(database, name="digits", trainable=trainable())
    arrange.SimulatedWorker(database, study, of=process).take()

    kill()

    assert "  studydb worker --study digits" in console("status", "digits").lines


def trainable():
    return Trainable(
        str(UUID(arrange.token())), TrainableKind.IMPORT, "a:b", "/", "3.11", None, {"key": "mac"}
    )


def test_status_of_a_study_without_results_does_not_suggest_the_best_command(console, database):
    study = arrange.new_study(database, name="digits", num_trials=1)
    run = arrange.SimulatedWorker(database, study).take()
    run.finish(outcome=Reason.FAILED, failure=Failure("ValueError", "no", "no"))

    page = console("status", "digits")
    listed = console("trials", "digits", "--state", "ERROR")

    assert "studydb best" not in page.out
    assert "  studydb trials digits --state ERROR" in page.lines
    assert "  studydb retry digits --errored" in page.lines
    assert listed.lines[-1] == "  studydb show digits 0"
    assert "why         1 failure, 0 lost attempts" in console("show", "digits", "0").out


def test_status_says_why_a_worker_gave_a_trial_back_until_the_trial_runs_again(console, database):
    study = arrange.new_study(database, name="digits")
    worker = arrange.SimulatedWorker(database, study)
    failure = Failure("studydb.TrainableError", "There is no module 'm\x1b'. Start it there.", "")
    worker.take().finish(outcome=Reason.PREEMPTED, failure=failure)

    waiting = console("status", "digits")
    document = console("status", "digits", "--format", "json").json
    worker.claim()
    running = console("status", "digits")

    assert (
        "A worker has given back trial 0, attempt 1: TrainableError: There is no module "
        r"'m\x1b'. Start it there."
    ) in waiting.lines
    assert (document["given_back"]["number"], document["given_back"]["attempt"]) == (0, 1)
    assert "given back" not in running.out


def test_status_does_not_say_that_a_worker_which_has_ended_gave_its_trial_back(console, database):
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study).take().finish(outcome=Reason.PREEMPTED)

    assert "given back" not in console("status", "digits").out


@pytest.mark.row("B10")
def test_status_lists_checkpoints_that_could_not_be_stored_or_read(console, database):
    study = arrange.new_study(database, name="digits")
    run = arrange.SimulatedWorker(database, study).take()
    assert "Problems" not in console("status", "digits").out
    run.report(0.5)
    saved = run.checkpoint()
    run.save(saved)
    with database.begin(write=False) as txn:
        stored = checkpoints.by_uuid(txn, uuid=saved.uuid)
    mark_corrupt(database, lease=run.lease, checkpoint=stored)

    for error in ("No space left on device", "Still no \x1b[31mspace"):
        record_event(database, lease=run.lease, kind="checkpoint failed", data={"error": error})

    lines = console("status", "digits").lines
    problems = lines[lines.index("Problems:") + 1 :]
    assert problems[0].endswith(
        r"trial 0: checkpoint failed (the newest of 2): Still no \x1b[31mspace"
    )
    assert problems[1].endswith("trial 0: checkpoint corrupt: inline:, step 1")
    document = console("status", "digits", "--format", "json").json
    assert [each["times"] for each in document["problems"]] == [2, 1]


def test_workers_command_prints_a_short_id_for_drain_and_the_whole_id_in_json(
    console, database, local_worker
):
    process, _ = local_worker
    worker = arrange.SimulatedWorker(database, arrange.new_study(database, name="d"), of=process)
    ((uuid,),) = arrange.rows(database, "SELECT worker FROM v_worker")

    listed = console("workers").lines[1].split()[0]
    drained = console("drain", listed)

    assert uuid == console("workers", "--format", "json").json[0]["worker"]
    assert listed == uuid[:8]
    assert (
        f"Worker {listed} on {process.host}: will start to release its trials within 4 s, "
        in drained.out
    )
    assert console("workers", "--format", "json").json[0]["health"] == "draining"
    assert "workers  1 alive" in console("status", "d").lines
    assert worker.renew().request == "DRAIN"


def test_status_prints_the_remaining_time_while_a_trial_runs(console, database):
    study = arrange.new_study(database, name="digits", num_trials=4)
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(0.5)
    assert "left" not in time_line(console)

    running = worker.take()

    assert re.fullmatch(r"time     \S+ s, \S+ trials/(s|min), about .+ left", time_line(console))
    running.finish(0.5)
    assert "left" not in time_line(console)


def time_line(console):
    return line_of("time", console)


def line_of(name, console):
    (line,) = (line for line in console("status", "digits").lines if line.startswith(f"{name} "))
    return line


def test_status_of_a_large_study_reads_only_its_newest_trials_and_says_so(
    console, database, monkeypatch
):
    for name, value in (("MOST_READ", 4), ("LEAST_READ", 2), ("LEAST_ENDED", 2)):
        monkeypatch.setattr(overview, name, value)
    study = arrange.new_study(database, name="digits", num_trials=9)
    worker = arrange.SimulatedWorker(database, study)
    for _ in range(4):
        worker.take().finish(0.5)
    assert line_of("ended", console) == "ended    4 completed"

    worker.take().finish(0.5)

    assert line_of("ended", console) == "ended    2 completed (the newest 2 trials)"
    assert time_line(console).endswith(" (the newest 2 trials)")

    worker.take()

    assert line_of("ended", console) == "ended    3 completed (the newest 4 trials)"


@pytest.mark.parametrize(
    ("minutes", "ended", "left", "runs", "text"),
    [
        (10, 5, 15, True, "10 min 0 s, 0.5 trials/min, about 30 min 0 s left"),
        (10, 5, 15, False, "5 min 0 s, 1 trials/min"),
        (10, 5, None, True, "10 min 0 s, 0.5 trials/min"),
        (10, 5, 0, True, "10 min 0 s, 0.5 trials/min"),
        (0.05, 0, 5, True, "3.0 s"),
    ],
)
def test_remaining_time_is_computed_from_the_pace_so_far(minutes, ended, left, runs, text):
    began = datetime(2026, 1, 1, tzinfo=UTC)
    pace = SimpleNamespace(began_at=began, last_end_at=began + timedelta(minutes=5), ended=ended)

    now = began + timedelta(minutes=minutes)

    assert pace_text(pace, now=now, left=left, runs=runs) == text


def test_time_without_workers_does_not_count_in_the_pace(database, clock):
    study = arrange.new_study(database, name="digits", num_trials=4)
    evening = arrange.SimulatedWorker(database, study, of=this_process())
    trial = evening.take()
    clock.advance(60)
    trial.finish(0.5)
    leave(database, worker_id=evening.id)
    clock.advance(10 * 3600)
    morning = arrange.SimulatedWorker(database, study, of=this_process())
    arrange.SimulatedWorker(database, study, of=this_process())  # at the same time: counts once
    trial = morning.take()
    clock.advance(60)
    trial.finish(0.5)

    morning.take()

    assert time_text(read_overview(database, study)) == (
        "10 h 2 min (2 min 0 s with workers), 1 trials/min, about 2 min 0 s left"
    )


def test_killed_worker_counts_in_the_pace_until_its_last_heartbeat(database, clock):
    study = arrange.new_study(database, name="digits", num_trials=4)
    killed = arrange.SimulatedWorker(database, study)
    run = killed.take()
    clock.advance(60)
    killed.renew(run)
    clock.advance(10 * 3600)
    worker = arrange.SimulatedWorker(database, study, of=this_process())
    trial = worker.take()
    clock.advance(60)
    trial.finish(0.5)

    worker.take()

    assert time_text(read_overview(database, study)).startswith(
        "10 h 2 min (2 min 0 s with workers), 0.5 trials/min, "
    )


@pytest.mark.parametrize(("num_trials", "advice"), [(1, True), (None, False)])
def test_status_advises_to_extend_only_a_study_that_has_num_trials(
    console, database, num_trials, advice
):
    study = arrange.new_study(
        database,
        name="digits",
        num_trials=num_trials,
        space=Space.read({"x": choice([1])}),
        searcher=GridSearch(),
    )
    arrange.SimulatedWorker(database, study).take().finish(0.5)

    page = console("status", "digits")

    assert "FINISHED" in page.out
    assert ("studydb extend digits" in page.out) is advice


def test_status_says_how_to_resume_paused_trials_also_if_the_study_is_finished(console, database):
    study = arrange.new_study(database, name="digits", num_trials=2)
    for number in range(2):
        assert arrange.enqueued(database, study) == number
        control.pause(database, study, [number], arrange.new_request())

        page = console("status", "digits")

        assert ("FINISHED" in page.out) is (number == 1)
        assert page.lines[page.lines.index("Next:") + 1 :][:2] == [
            "  studydb trials digits --state PAUSED",
            "  studydb resume digits N",
        ]


def test_status_names_the_tags_that_a_worker_needs(console, database):
    arrange.new_study(
        database, name="digits", num_trials=1, trainable=trainable(), require=("a100", "b")
    )

    assert console("status", "digits").lines[-1] == (
        "  studydb worker --study digits --tag a100 --tag b"
    )


def test_status_prints_the_count_of_trials_with_clones_and_num_trials(console, database):
    study = arrange.new_study(database, name="digits", num_trials=1)
    arrange.SimulatedWorker(database, study).take().finish(outcome=Reason.FAILED)
    console("retry", "digits", "0")

    line = line_of("trials", console)
    assert line.endswith(" 2 with 1 clone, and at most 1 other: 1 PENDING, 1 ERROR")


def test_trials_that_are_still_to_be_made_are_counted_without_clones(console, database, clock):
    study = arrange.new_study(database, name="digits", num_trials=4)
    worker = arrange.SimulatedWorker(database, study)
    for _ in range(2):
        trial = worker.take()
        clock.advance(60)
        worker.renew(trial)
        trial.finish(0.5)
    console("retry", "digits", "0", "1")
    arrange.SimulatedWorker(database, study).take()

    assert line_of("trials", console).endswith(
        " 4 with 2 clones, and at most 4 others: 1 PENDING, 1 RUNNING, 2 TERMINATED"
    )
    assert time_text(read_overview(database, study)) == (
        "2 min 0 s, 1 trials/min, about 4 min 0 s left"
    )
    progress = read_progress(database, study)
    assert (progress.n_clones, progress.n_to_make) == (2, 2)


def test_status_counts_trials_that_a_limit_or_an_invalidation_has_ended(console, database):
    study = arrange.new_study(database, name="digits", num_trials=9)
    worker = arrange.SimulatedWorker(database, study)
    ends = (Reason.COMPLETED, Reason.BUDGET_SPENT, Reason.TIMED_OUT, Reason.INVALIDATED)
    for number, reason in enumerate(ends):
        worker.take().finish(0.5)
        arrange.change(database, f"UPDATE trial SET reason = '{reason}' WHERE number = {number}")

    assert line_of("ended", console).endswith(
        " 1 completed, 2 ended by a limit, 1 ended by invalidation"
    )


def test_status_and_best_say_that_the_trials_with_values_are_invalidated(console, database):
    study = arrange.new_study(database, name="digits")
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(0.5)
    console("invalidate", "digits", "0", "--reason", "wrong labels")

    assert line_of("best", console).endswith(
        "none: all trials that have reported loss are invalidated"
    )
    assert (
        "no best trial: all trials with 'loss' are inv" in console("best", "digits", code=1).error
    )

    worker.take().finish(math.nan)
    assert line_of("best", console).endswith(" are invalidated or have only NaN")


@pytest.mark.parametrize(
    ("num_trials", "made", "trials"),
    [(None, 3, "3 of 3"), (2, 2, "2 of 2"), (9, 3, "3 of 9"), (None, 1, "1 of 3")],
)
def test_budget_of_a_grid_is_counted_by_its_points(console, database, num_trials, made, trials):
    space = Space.read({"x": choice([1, 2, 3])})
    study = arrange.new_study(
        database, name="digits", space=space, searcher=GridSearch(), num_trials=num_trials
    )
    for _ in range(made):
        arrange.SimulatedWorker(database, study).take().finish(0.5)

    assert f" {trials}: " in line_of("trials", console)
    progress = read_progress(database, study)
    assert progress.n_to_make == min(3, num_trials or 3) - made
    assert progress.has_budget is (progress.n_to_make > 0)


def test_stopped_study_promises_no_time_for_trials_that_are_not_made(database):
    study = arrange.new_study(database, name="digits", num_trials=2000)
    worker = arrange.SimulatedWorker(database, study, of=this_process())
    worker.take().finish(0.5)
    running = worker.take()
    assert "left" in time_text(read_overview(database, study))
    set_status(database, study, Status.STOPPED, arrange.new_request())
    running.finish(0.5)

    assert "left" not in time_text(read_overview(database, study))


def test_status_prints_one_error_and_the_show_command_if_the_study_paused_itself(console, database):
    study = arrange.new_study(database, name="digits", num_trials=9)
    for _ in range(5):
        run = arrange.SimulatedWorker(database, study).take()
        run.finish(outcome=Reason.FAILED, failure=Failure("ValueError", "no data.", "no"))

    page = console("status", "digits")

    assert page.out.count("ValueError: no data") == 1
    assert "no data..\n" not in page.out
    assert "Details: `studydb show digits 4`." in page.lines
