"""
The results of a long trial are read in pages, and equal the rows of v_result.

A terminal shows only the last results, and only the columns for which it is wide enough.
"""

import json
import re

import pytest
from harness import arrange

from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason
from studydb.domain.listed_rows import ListedResult
from studydb.domain.records import Batch
from studydb.operations import pages, reads, summing

N = 120


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(summing, "FIRST_PAGE", 2)
    monkeypatch.setattr(summing, "LARGEST_PAGE", 7)


@pytest.fixture
def study(database):
    """A study with one trial of three attempts; the second attempt repeats steps of the first."""
    study = arrange.new_study(database, name="digits", num_trials=1, rules=read_rules(["loss>=3"]))
    worker = arrange.SimulatedWorker(database, study)
    for first, last in ((1, 80), (61, 90), (91, N)):
        run = worker.take()
        rows = arrange.results(*(1 / step for step in range(first, last + 1)), first=first, acc=0.5)
        run.send(Batch(1, rows, first - 1, run.summary))
        if last < N:
            run.finish(outcome=Reason.PREEMPTED)
    return study


def view_rows(database):
    with database.begin(write=False) as txn:
        names, rows = txn.raw("SELECT number, step, value, attempt FROM v_result ORDER BY step")
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_paged_results_equal_the_rows_of_v_result(console, database, study):
    document = console("results", "digits", "0", "--format", "json").json

    assert [
        {name: row[name] for name in ("number", "step", "value", "attempt")} for row in document
    ] == view_rows(database)
    assert document[0]["metrics"] == {"acc": 0.5, "loss": 1.0}
    assert document[0].keys() == dict.fromkeys(ListedResult._fields).keys()


@pytest.mark.parametrize("n", [1, 29, 30, 31, 60, 61, N - 1, N, N + 1])
def test_limit_option_prints_the_last_results(console, database, study, n):
    document = console("results", "digits", "0", "--limit", str(n), "--format", "json").json

    assert [row["step"] for row in document] == [row["step"] for row in view_rows(database)][-n:]


def test_json_of_results_is_an_indented_list(console, database, study):
    text = console("results", "digits", "0", "--limit", "2", "--format", "json").out
    arrange.SimulatedWorker(database, arrange.new_study(database, name="new")).take()

    assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert console("results", "new", "0", "--format", "json").out == "[]\n"
    assert console("results", "new", "0").out == "no results\n"


def test_terminal_shows_the_last_50_results_and_the_command_for_all(console, study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    ran = console("results", "digits", "0")

    assert f"(the last 50 of {N})" in ran.lines
    assert f"  studydb results digits 0 --limit {N}" in ran.lines
    assert len([line for line in ran.lines if "0.5" in line]) == 50


def test_columns_for_which_the_terminal_is_too_narrow_are_named(console, study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    names = [f"column_{number}" for number in range(9)]

    ran = console("query", "SELECT " + ", ".join(f"'words' AS {name}" for name in names))

    lines = re.sub(r"\x1b\[\d*m", "", ran.out).splitlines()
    left_out = lines[-1].removeprefix("(without ").removesuffix(": the terminal is narrow)")
    assert left_out.split(", ") == names[-left_out.count("column") :]
    assert len(max(lines[:-1], key=len)) <= 40
    assert ran.out.count("words") + left_out.count("column") == len(names)


def test_table_on_a_terminal_names_columns_as_the_query_does(console, study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    ran = console("query", "SELECT 1 AS best_value, 2 AS _x, 'long' AS " + "_".join(["part"] * 9))

    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", ran.out).splitlines()]
    assert lines[1:4] == [["_".join(["part"] * 4)]] * 2 + [["best_value", "_x", "part"]]


@pytest.mark.each_database
def test_listings_do_not_hold_a_transaction_while_rows_are_decoded(database, study):
    """PostgreSQL could end a session that is idle in a transaction."""
    sent = []
    database.observer = sent.append

    reads.listed_trials(database, study)
    reads.list_trials(database, study)

    verbs = [sql.split()[0] for sql in sent]
    assert verbs == ["SELECT", "SELECT"] or not database.postgresql


def test_table_and_csv_in_a_pipe_have_all_results(console, study):
    assert len(console("results", "digits", "0").lines) == N + 1
    assert len(console("results", "digits", "0", "--format", "csv").lines) == N + 1


def test_all_pages_of_results_belong_to_the_snapshot_of_the_first_page(database, study):
    found = pages.trial_results(database, study, 0)
    rows = found.rows()
    first = next(rows)

    arrange.change(database, "UPDATE attempt SET live_through = 5 WHERE attempt = 1")
    arrange.change(
        database,
        "INSERT INTO result (study_id, trial_id, attempt, step, value, reported_at) "
        "SELECT study_id, trial_id, attempt, step + 1, value, reported_at FROM result "
        f"WHERE step = {N}",
    )

    assert [first[2], *(row[2] for row in rows)] == list(range(1, N + 1))


def test_show_reads_only_the_last_result(console, database, study):
    read = []
    database.observer = read.append

    last = reads.trial_details(database, study, 0).last_result

    assert (last.step, last.value, dict(last.metrics)) == (N, 1 / N, {"acc": 0.5})
    assert console("show", "digits", "0").lines[0].split() == ["trial", "0", "of", "digits"]
    assert all("LIMIT" in sql for sql in read if "FROM result" in sql)
