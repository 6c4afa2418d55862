"""What commands do and print, on SQLite and on PostgreSQL."""

import json
import math

import pytest
from harness import arrange

from studydb.db import revisions
from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.failures import Failure
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Mode, Reason
from studydb.domain.metrics import Result
from studydb.domain.records import Batch
from studydb.domain.space.search_space import Space, choice, loguniform, uniform
from studydb.operations.create import load
from studydb.schedulers import ASHA

SPACE = Space.read({"lr": loguniform(1e-4, 1.0), "net": {"act": choice(["relu", "tanh"])}})


@pytest.mark.each_database
def test_create_stores_its_options_and_suggests_the_next_commands(console, database, here):
    (here / "space.json").write_text(json.dumps({"net": {"act": {"$": "choice(relu, tanh)"}}}))

    ran = console(
        *("create", "digits", "--metric", "val/error", "--mode", "max", "--num-trials", "60"),
        *("--param", "lr=loguniform(1e-4, 1)", "--param", "epochs=27", "--space", "space.json"),
        *("--scheduler", "ASHA(max_t=27, reduction_factor=3)", "--max-concurrent", "4"),
        *("--searcher", "RandomSearch(seed=5)", "--stop", "loss>=3", "--stop", "t<0"),
        *("--max-failures", "2", "--trainable", "studydb.examples.quadratic:train"),
    )

    study = load(database, "digits")
    assert (str(study.objective), study.seed) == ("val/error (max)", 5)
    assert study.space == Space.read(
        {"net": {"act": choice(["relu", "tanh"])}, "lr": loguniform(1e-4, 1), "epochs": 27}
    )
    assert study.scheduler == ASHA(max_t=27, reduction_factor=3)
    rules = [(rule.metric, rule.op, rule.bound) for rule in study.rules]
    assert rules == [("loss", ">=", 3), ("t", "<", 0)]
    assert (study.num_trials, study.max_concurrent, study.max_failures) == (60, 4, 2)
    assert study.trainable.workdir == str(here)
    assert "  studydb worker --study digits" in ran.lines
    if database.postgresql:
        assert "  export STUDYDB_STORAGE='postgresql://postgres@/" in ran.out
        assert ran.lines[-1].endswith("/.config/studydb/keys studydb worker --study digits")
    else:
        assert "An SQLite file is for one machine" in ran.out


def test_create_with_if_not_exists_prints_the_same_text_when_run_twice(console):
    line = ("create", "digits", "--metric", "error", "--mode", "min", "--if-not-exists")

    assert console(*line).out == console(*line).out


def test_suggested_commands_repeat_the_storage_option_that_the_user_typed(bare_console, here):
    line = ("create", "my study", "--metric", "error", "--mode", "min")

    made = bare_console(*line, "--storage", "sqlite:///s.db")
    looked = bare_console("--storage", "sqlite:///s.db", "status", "my study")
    listed = bare_console("--storage", "sqlite:///s.db", "status")

    assert f"storage='sqlite:///{here}/s.db'" in made.out
    assert f"  studydb trials 'my study' --storage sqlite:///{here}/s.db" in looked.lines
    assert f"  studydb status 'my study' --storage sqlite:///{here}/s.db" in listed.lines


def test_param_option_that_overlaps_the_space_file_is_refused(bare_console, here):
    (here / "space.json").write_text('{"net": {"act": 1}}')
    line = ("create", "x", "--metric", "m", "--mode", "min", "--space", "space.json")

    for param in ("net=3", "net/act=3", "net/act/deep=3"):
        refused = bare_console(*line, "--param", param, code=2)
        assert "exclude each other" in refused.err


def test_environment_variables_set_options_and_semicolons_separate_repeated_values(
    console, database, monkeypatch
):
    monkeypatch.setenv("STUDYDB_CREATE_METRIC", "error")
    monkeypatch.setenv("STUDYDB_CREATE_MODE", "min")
    monkeypatch.setenv("STUDYDB_CREATE_PARAM", "lr=uniform(0, 1);epochs=27")
    monkeypatch.setenv("STUDYDB_FORMAT", "json")

    console("create", "digits")

    assert load(database, "digits").space == Space.read({"lr": uniform(0, 1), "epochs": 27})
    assert console("studies").json[0]["study"] == "digits"


def test_enqueue_extend_pause_resume_and_stop_change_the_study(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE, num_trials=2)

    enqueued = console("enqueue", "digits", "lr=0.1", "net/act=relu")
    assert enqueued.lines == ["Study 'digits': enqueued trial 0."]
    drawn = console("enqueue", "digits")
    assert drawn.lines == [
        "Study 'digits': enqueued trial 1; its parameters are drawn at random from the space."
    ]
    extended = console("extend", "digits", "--trials", "3")
    assert extended.lines == ["Study 'digits': 5 trials in all."]
    console("pause", "digits")
    assert "  studydb resume digits" in console("extend", "digits", "--trials", "1").lines
    console("resume", "digits")
    console("pause", "digits", "0")
    console("stop", "digits", "1")
    assert arrange.states_of(database, study) == ["PAUSED", "TERMINATED"]
    console("resume", "digits", "0")
    assert arrange.states_of(database, study) == ["PENDING", "TERMINATED"]

    for command, status in (("pause", "PAUSED"), ("stop", "STOPPED"), ("resume", "RUNNING")):
        console(command, "digits")
        assert console("studies", "--format", "json").json[0]["status"] == status

    assert arrange.trial_of(database, study, 0).params == {"lr": 0.1, "net": {"act": "relu"}}


def test_best_first_listing_puts_nan_after_infinity_and_trials_without_results_last(
    console, database
):
    study = arrange.new_study(database, name="digits", space=SPACE, mode=Mode.MAX)
    worker = arrange.SimulatedWorker(database, study)
    for value in (0.5, math.nan, -math.inf, 0.75):
        worker.take().finish(value)
    arrange.enqueued(database, study)

    ranked = console("trials", "digits", "--sort", "best", "--format", "json").json
    table = console("trials", "digits")
    two = console("trials", "digits", "--sort", "best", "--limit", "2", "--format", "csv")

    assert [row["number"] for row in ranked] == [3, 0, 2, 1, 4]
    assert [row["value"] for row in ranked] == [0.75, 0.5, "-Infinity", "NaN", None]
    assert table.lines[0].split() == [
        *("number", "state", "reason", "value", "best_value", "best_step", "last_step"),
        *("attempt", "duration_s", "params"),
    ]
    assert "-Infinity" in table.lines[3]
    assert "NaN" in table.lines[2]
    assert [row["number"] for row in two.csv] == ["3", "0"]
    pending = console("trials", "digits", "--state", "pending", "--format", "json").json
    assert [row["number"] for row in pending] == [4]


def test_csv_of_trials_has_a_column_per_parameter(console, database):
    space = Space.read({"state": choice([1]), "net": {"h": choice([2])}})
    study = arrange.new_study(database, name="digits", space=space)
    arrange.SimulatedWorker(database, study).take().finish(0.5)

    rows = console("trials", "digits", "--format", "csv").csv

    (row,) = rows
    assert (row["state"], row["param/state"], row["net/h"]) == ("TERMINATED", "1", "2")


def test_results_command_lists_live_steps_with_a_column_per_metric(console, database):
    study = arrange.new_study(database, name="digits")
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5, math.nan, acc=0.25)
    run.report(0.125, note="a b")

    table = console("results", "digits", "0")
    rows = console("results", "digits", "0", "--format", "csv").csv
    document = console("results", "digits", "0", "--format", "json").json

    assert table.lines[0].split() == ["step", "loss", "acc", "note", "attempt", "reported_at"]
    assert [row["loss"] for row in rows] == ["0.5", "NaN", "0.125"]
    assert [row["acc"] for row in rows] == ["0.25", "0.25", ""]
    assert document[1]["metrics"] == {"acc": 0.25, "loss": "NaN"}


def test_best_command_prints_metric_and_mode_in_every_format(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE, mode=Mode.MAX)
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(0.1, 0.7, 0.3)
    worker.take().finish(0.7)

    table = console("best", "digits")
    document = console("best", "digits", "--format", "json").json
    row = console("best", "digits", "--format", "csv").csv[0]

    assert table.lines[0].split() == ["best", "loss", "(max)", "0.7"]
    assert (document["metric"], document["mode"], document["number"]) == ("loss", "max", 0)
    assert (document["best_value"], document["best_step"]) == (0.7, 2)
    assert (row["metric"], row["mode"], row["number"]) == ("loss", "max", "0")


def test_show_says_why_a_scheduler_stopped_a_trial(console, database):
    study = arrange.new_study(
        database, name="digits", mode=Mode.MAX, scheduler=ASHA(max_t=9, reduction_factor=3)
    )
    worker = arrange.SimulatedWorker(database, study)
    worker.take().report(0.5)
    stopped = worker.take()
    stopped.report(0.25)
    stopped.finish()

    page = console("show", "digits", "1")
    document = console("show", "digits", "1", "--format", "json").json

    assert "TERMINATED: EARLY_STOPPED" in page.out
    assert "loss (max) at rung 1 was 0.25, worse than the cutoff 0.5 of the earlier" in page.out
    assert "of the earlier trials; the trial now has rank 2 of 2 there" in page.out
    judged = {"rung": 1, "step": 1, "value": 0.25, "cutoff": 0.5, "action": "STOP"}
    ranked = {"bracket": 0, "rank": 2, "n_ranked": 2}
    later = {"promoted_at": None, "kept": None, "why": None}
    assert document["judged"] == [judged | ranked | later]


def test_show_says_at_which_rung_a_trial_waits_for_its_promotion(console, database):
    scheduler = ASHA(max_t=9, reduction_factor=3, type="promotion")
    study = arrange.new_study(database, name="digits", scheduler=scheduler)
    arrange.SimulatedWorker(database, study).take().pause(0.5)

    page = console("show", "digits", "0")

    assert "PAUSED" in page.out
    rank = "the trial now has rank 1 of 1 there"
    waits = "the trial waits there until its rank suffices for a promotion"
    assert f"at rung 1 was 0.5; {rank}; {waits}" in page.out


def test_show_says_which_rule_stopped_a_trial(console, database):
    study = arrange.new_study(database, name="digits", rules=read_rules(["gap>2", "loss>=3"]))
    run = arrange.SimulatedWorker(database, study).take()
    run.report(1.0, 3.5, gap=0)
    run.finish()

    assert "step 2 met the rule loss>=3" in console("show", "digits", "0").out


@pytest.mark.row("B12")
def test_show_prints_the_error_of_a_failed_trial(console, database):
    study = arrange.new_study(database, name="digits")
    run = arrange.SimulatedWorker(database, study).take()
    run.finish(
        outcome=Reason.FAILED,
        failure=Failure("mine.BadLuck", "bad \x1b[31m luck", "Traceback:\n  line 1\nBadLuck"),
        process=AttemptProcess("/nowhere/at/all", "the end\n"),
    )

    page = console("show", "digits", "0")
    document = console("show", "digits", "0", "--format", "json").json
    logs = console("logs", "digits", "0")

    assert "1 failure, 0 lost attempts; BadLuck: bad \\x1b[31m luck" in page.out
    assert "\x1b" not in page.out
    assert "mine.BadLuck" not in page.out
    assert page.out.endswith("Traceback:\n  line 1\nBadLuck\n")
    assert document["attempts"][0]["error_type"] == "mine.BadLuck"
    assert logs.out == "the end\n"
    assert "the files are in /nowhere/at/all, which cannot be read on this host" in logs.err


def test_show_prints_the_code_that_each_attempt_ran(console, database):
    study = arrange.new_study(database, name="digits", max_failures=1)
    worker, code = arrange.SimulatedWorker(database, study), {"name": "mod:f", "sha256": "ab" * 32}
    worker.take().finish(outcome=Reason.FAILED, process=AttemptProcess("/nowhere", "", code=code))
    arrange.change(database, "UPDATE trial SET ready_at = created_at, ready = (1 = 1)")
    worker.claim().finish()

    page = console("show", "digits", "0")
    attempts = console("show", "digits", "0", "--format", "json").json["attempts"]

    assert "mod:f abababababab\n" in page.out
    assert [one["provenance"] for one in attempts] == [code, None]


@pytest.mark.parametrize("provenance", ['[1, {"a": 2}]', '"text"', '{"name": 7, "sha256": [1]}'])
def test_show_prints_an_attempt_whatever_json_its_provenance_holds(console, database, provenance):
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study).take().finish(0.5)
    arrange.change(database, f"UPDATE attempt SET provenance = '{provenance}'")

    assert "COMPLETED" in console("show", "digits", "0").out


@pytest.mark.row("B14")
def test_logs_command_prints_the_files_of_the_given_attempt(console, database, tmp_path):
    study = arrange.new_study(database, name="digits", max_failures=1)
    worker = arrange.SimulatedWorker(database, study)
    for attempt in (1, 2):
        # The worker had another home directory, so it wrote outside this user's folder of logs.
        folder = tmp_path / "logs" / study.uuid / "0" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "stdout.1").write_text("before ")
        (folder / "stdout").write_text(f"out {attempt}\n")
        (folder / "stderr").write_text(f"err {attempt}\n")
        run = worker.claim() or worker.ask()
        run.finish(outcome=Reason.FAILED, process=AttemptProcess(str(folder), "tail"))
        arrange.change(database, "UPDATE trial SET ready_at = created_at, ready = (1 = 1)")
        if attempt == 1:
            assert arrange.states_of(database, study) == ["PENDING"]

    newest = console("logs", "digits", "0", "-f")
    first = console("logs", "digits", "0", "--attempt", "1")

    assert (newest.out, newest.err) == ("before out 2\n", "err 2\n")
    assert (first.out, first.err) == ("before out 1\n", "err 1\n")
    missing = console("logs", "digits", "0", "--attempt", "3", code=1)
    assert "has no attempt 3; it has 2 attempts." in missing.error


def test_logs_command_says_that_an_attempt_printed_nothing(console, database):
    study = arrange.new_study(database, name="digits")
    run = arrange.SimulatedWorker(database, study).take()

    running = console("logs", "digits", "0").err
    run.finish(0.5)

    assert running == ("(attempt 1 of trial 0 is running; so far this host has no output of it)\n")
    ended = console("logs", "digits", "0", "-f").err
    assert ended == "(attempt 1 of trial 0 has printed nothing)\n"


def test_status_lists_at_most_twenty_running_and_pending_trials(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE, num_trials=60)
    for _ in range(30):
        arrange.enqueued(database, study)
    worker = arrange.SimulatedWorker(database, study)
    for _ in range(3):
        worker.take()
    worker.take().finish(0.5)

    page = console("status", "digits")
    document = console("status", "digits", "--format", "json").json

    states = [row["state"] for row in document["live"]]
    assert (states.count("RUNNING"), states.count("PENDING")) == (3, 17)
    assert "trials   30 of 60: 26 PENDING, 3 RUNNING, 1 TERMINATED" in page.lines
    assert "not shown: 9 PENDING" in page.lines
    assert "best     loss (min) 0.5, trial 3, step 1" in page.lines
    assert "workers  1 alive" in page.lines
    assert document["best"]["best_value"] == 0.5
    assert (document["pending"], document["workers_alive"]) == (26, 1)


def test_status_suggests_commands_for_a_new_and_for_a_finished_study(console, database):
    study = arrange.new_study(database, name="digits", num_trials=2)
    fresh = console("status", "digits")
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(outcome=Reason.FAILED)
    worker.take().finish(0.5)
    done = console("status", "digits")
    all_of_them = console("status")

    assert "best     no loss reported yet" in fresh.lines
    assert "  studydb trials digits" in fresh.lines
    assert "status   FINISHED" in done.lines
    assert done.lines[-4:] == [
        "  studydb trials digits --state ERROR",
        "  studydb retry digits --errored",
        "  studydb best digits",
        "  studydb extend digits --trials N",
    ]
    assert all_of_them.lines[1].split()[:2] == ["digits", "FINISHED"]
    assert console("status", "--format", "json").json == console("studies", "--format", "json").json
    assert console("status", "digits", "--format", "csv").lines[1].startswith("digits,FINISHED")


def test_workers_command_prints_alive_silent_or_ended(console, database, clock):
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study, lease_s=5.0, of=arrange.process(7))
    arrange.change(database, "UPDATE worker SET ended_at = started_at")
    arrange.SimulatedWorker(database, study, lease_s=5.0, of=arrange.process(8))
    arrange.SimulatedWorker(database, study, lease_s=10**10, of=arrange.process(9))

    everywhere = console("workers", "--format", "json").json
    here = console("workers", "digits", "--limit", "1", "--format", "json").json

    health = {row["pid"]: row["health"] for row in everywhere}
    assert health == {9: "alive", 8: "silent", 7: "ended"}
    assert list(health) == [9, 8, 7]
    assert [row["pid"] for row in here] == [9]


def test_query_prints_rows_in_every_format(console, database):
    study = arrange.new_study(database, name="digits")
    arrange.SimulatedWorker(database, study).take().finish(0.5, math.nan)
    sql = "SELECT number, best_value, value FROM v_trial"

    assert console("query", sql).lines == ["number  best_value  value", "     0         0.5    NaN"]
    assert console("query", sql, "--format", "csv").lines[1] == "0,0.5,NaN"
    (row,) = console("query", sql, "--format", "json").json
    assert row == {"number": 0, "best_value": 0.5, "value": "NaN"}
    same_name = console("query", "SELECT 1 AS a, 2 AS a", "--format", "json").json
    assert same_name == [{"a": 1, "a_2": 2}]
    assert console("query", f"{sql} WHERE number = 7").lines == ["no rows"]


def test_empty_listing_says_that_there_are_no_studies_workers_or_trials(console, database):
    assert console("studies").lines == ["no studies"]
    assert console("workers").lines == ["no workers"]
    arrange.new_study(database, name="digits")
    assert console("trials", "digits").lines == ["no trials"]
    assert console("trials", "digits", "--format", "json").json == []
    assert console("trials", "digits", "--format", "csv").lines[0].startswith("study,number,state")


@pytest.mark.slow
def test_db_commands_upgrade_check_and_downgrade_the_schema(bare_console, empty_storage_url):
    def db(*arguments, code=0):
        return bare_console("db", *arguments, "--storage", empty_storage_url, code=code)

    assert db("upgrade").lines[0].endswith(f"schema none -> {revisions.HEAD}.")
    assert db("upgrade").lines[0].endswith(f"schema {revisions.HEAD} already.")
    assert db("current").lines == [revisions.HEAD]
    assert db("check").lines[0].endswith(f"schema {revisions.HEAD}, as this studydb needs it.")
    assert "There is no revision '77'" in db("downgrade", "77", "--yes", code=2).err
    db("downgrade", "base", "--yes")
    assert db("current").lines == ["none"]
    assert "has no studydb tables" in db("check", code=1).err


def test_listings_show_no_row_of_another_study(console, database):
    for name in ("mine", "theirs"):
        study = arrange.new_study(database, name=name)
        run = arrange.SimulatedWorker(database, study).take()
        run.send(Batch(1, (Result(1, 0.5, {"of": name}),), 0))

    for command in (["trials"], ["results", "0"], ["workers"]):
        line = [command[0], "mine", *command[1:], "--format", "json"]
        assert {row["study"] for row in console(*line).json} == {"mine"}
    assert console("results", "mine", "0", "--format", "json").json[0]["metrics"]["of"] == "mine"


def test_study_whose_trials_have_all_diverged_has_no_finite_best_value(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE)
    arrange.SimulatedWorker(database, study).take().finish(math.inf)

    assert "none finite yet (Infinity), trial 0" in console("status", "digits").out
    assert "best loss (min)  none finite yet (Infinity)" in console("best", "digits").out
    assert console("best", "digits", "--format", "json").json["best_value"] == "Infinity"


def test_infinite_value_that_is_better_than_all_others_is_the_best_value(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE)
    arrange.SimulatedWorker(database, study).take().finish(-math.inf)

    assert "loss (min) -Infinity, trial 0" in console("status", "digits").out
    assert "best loss (min)  -Infinity\n" in console("best", "digits").out


def test_status_and_best_say_that_only_nan_was_reported(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE)
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(math.nan)

    assert "best     no loss reported yet, only NaN" in console("status", "digits").lines
    assert "reported any 'loss' but NaN yet" in console("best", "digits", code=1).error

    worker.take().finish(math.nan, 0.5)

    assert "best     loss (min) 0.5, trial 1, step 2" in console("status", "digits").lines


def test_tables_print_six_digits_while_json_and_csv_print_all_digits(console, database):
    study = arrange.new_study(database, name="digits", space=SPACE)
    arrange.SimulatedWorker(database, study).take().finish(1 / 3)

    for command in (("trials", "digits"), ("status", "digits"), ("best", "digits")):
        printed = console(*command).out
        assert "0.333333" in printed
        assert "0.3333333" not in printed
    for form in ("json", "csv"):
        assert "0.3333333333333333" in console("trials", "digits", "--format", form).out


def test_status_counts_early_stops_separately_and_prints_the_pace(console, database, clock):
    rules = read_rules({"loss": 3})
    study = arrange.new_study(database, name="digits", space=SPACE, num_trials=9, rules=rules)
    assert "\nended" not in console("status", "digits").out
    worker = arrange.SimulatedWorker(database, study)
    for value in (0.5, 5.0, 0.25):
        trial = worker.take()
        clock.advance(20)
        trial.finish(value)

    shown = console("status", "digits").out

    assert "\nended    2 completed, 1 stopped early\n" in shown
    assert "\ntime     1 min 0 s, 3 trials/min\n" in shown
