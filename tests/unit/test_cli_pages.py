"""
How groups of rows share a page, which columns a table omits, and how columns are named.

One test checks whether a typed word is read as a trial's number or as a trial's name.
"""

import math
import re
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studydb.analysis.expanding import expanded_names
from studydb.cli.column_widths import left_out
from studydb.cli.options import LARGEST_NUMBER, TrialWord
from studydb.cli.printing import print_table
from studydb.cli.query import _distinct
from studydb.cli.show import JUDGED_SPARE_COLUMNS
from studydb.cli.workers import COLUMNS, SPARE_COLUMNS
from studydb.domain.listed_rows import Judgement
from studydb.operations.overview import share


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ({"a": 100, "b": 100}, {"a": 10, "b": 10}),
        ({"a": 2, "b": 100}, {"a": 2, "b": 18}),
        ({"a": 0, "b": 3, "c": 4}, {"a": 0, "b": 3, "c": 4}),
        ({"a": 50, "b": 50, "c": 50}, {"a": 6, "b": 7, "c": 7}),
        ({}, {}),
    ],
)
def test_groups_share_a_page_evenly(sizes, shares):
    assert share(sizes, 20) == shares


@given(st.dictionaries(st.integers(), st.integers(0, 40), max_size=6), st.integers(0, 30))
def test_page_is_full_or_shows_every_row(sizes, most):
    shares = share(sizes, most)

    assert sum(shares.values()) == min(most, sum(sizes.values()))
    assert all(shares[group] <= size for group, size in sizes.items())


def test_narrow_terminal_omits_as_few_optional_columns_as_possible_in_the_given_order():
    widths = {"number": 6, "value": 10, "params": 20}

    assert left_out(widths, ["value", "number"], terminal_width=42) == []
    assert left_out(widths, ["value", "number"], terminal_width=40) == ["value"]
    assert left_out(widths, ["value", "number"], terminal_width=5) == ["value", "number"]
    assert left_out(widths, ["tags", "value"], terminal_width=40) == ["value"]  # no row has tags


def test_table_is_no_wider_than_its_terminal_and_cuts_no_cell(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    uses = "cpus=1, gpus=1 of cpus=8, gpus=2; reserved for trial 12"
    long = {
        "study": "digits-of-every-kind",
        "host": "gpu-node-17.cluster.example.org",
        "uses": uses,
    }
    row = {name: long.get(name, "1234abcd") for name in COLUMNS}

    print_table(COLUMNS, [tuple(row.values())], spare=SPARE_COLUMNS)

    table, _, _ = capsys.readouterr().out.partition("(without ")
    assert max(map(len, re.sub(r"\x1b\[\d*m", "", table).splitlines())) <= 80
    shown = "".join(text for name, text in row.items() if name not in SPARE_COLUMNS)
    body = table.rpartition("─")[2]
    assert sorted("".join(body.split())) == sorted("".join(shown.split()))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_names_of_columns_are_printed_as_text_and_not_as_markup(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)

    print_table(("x[a]", "[/b]", "\x1b[31m"), [(1, 2, 3)])

    out = capsys.readouterr().out
    assert "x[a]" in out
    assert "[/b]" in out
    assert "\x1b[31m" not in out


def test_name_of_an_omitted_column_is_printed_without_control_characters(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "20")

    print_table(("wide", "\x1b[31m"), [("a" * 20, "b" * 20)], spare=["\x1b[31m"])

    assert "(without " in (out := capsys.readouterr().out)
    assert "\x1b[31m" not in out


def test_columns_are_aligned_beside_characters_of_double_width(capsys):
    print_table(("名前", "value"), [("学習率", 1), ("lr", 22)])

    lines = capsys.readouterr().out.splitlines()
    assert lines == ["名前    value", "学習率      1", "lr         22"]


def test_params_of_trials_are_shown_whole_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    row = {
        "number": 0,
        "state": "TERMINATED",
        "reason": "COMPLETED",
        "best_value": 0.0459097,
        "value": 0.0459097,
        "best_step": 4,
        "last_step": 4,
        "attempt": 1,
        "duration_s": 1.5,
        "params": "lr=0.459097, k=3",
    }

    print_table(tuple(row), [tuple(row.values())], spare=("duration_s", "attempt"))

    out = capsys.readouterr().out
    assert "params" in out
    assert "lr=0.459097," in out


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        (["a", "b", "a", "a"], ["a", "b", "a_2", "a_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["a_2", "a", "a"], ["a_2", "a", "a_3"]),
    ],
)
def test_columns_of_the_same_name_get_names_that_no_other_column_has(selected, names):
    assert _distinct(selected) == names


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("7", 7),
        ("0" * 30 + "7", 7),
        (str(LARGEST_NUMBER), LARGEST_NUMBER),
        ("base", "base"),
    ],
)
def test_digits_stand_for_the_number_of_a_trial_and_other_text_for_its_name(text, word):
    assert TrialWord().convert(text, None, None) == word


@pytest.mark.parametrize("text", [str(LARGEST_NUMBER + 1), "9" * 5000])
def test_number_that_no_trial_can_have_is_refused_as_it_was_typed(text):
    with pytest.raises(click.BadParameter, match=f"'{text}' is too large"):
        TrialWord().convert(text, None, None)


@pytest.mark.parametrize(
    ("first", "others", "columns"),
    [
        (["lr"], ["b", "a"], {"lr": "lr", "a": "a", "b": "b"}),
        (["state"], [], {"state": "param/state"}),
        (
            ["state", "param/state"],
            [],
            {"state": "param/param/state", "param/state": "param/state"},
        ),
        (["lr", "lr"], ["lr"], {"lr": "lr"}),
    ],
)
def test_only_a_parameter_with_the_name_of_a_fixed_column_gets_a_prefix(first, others, columns):
    named = expanded_names(first, others, taken=["number", "state"], prefix="param/")

    assert named == columns
    assert list(named) == list(columns)


def test_long_cells_are_not_broken_on_a_wide_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    name = "digits-resnet50-imagenet-baseline-2026-11"

    print_table(("study", "last_step"), [(name, 3)])

    out = capsys.readouterr().out
    assert name in out
    assert "last_step" in out


def lines_on_a_terminal(monkeypatch, capsys, columns, rows, *, width=80, spare=()):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(columns, rows, spare=spare)
    return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()


def test_no_number_of_a_judgement_is_broken_on_a_narrow_terminal(monkeypatch, capsys):
    columns = tuple(column for column in Judgement._fields if column != "why")
    row = (27, 27, -6.676061e-13, -1.234561e-12, "promote", 0, 3, 27, datetime.now(UTC), True)

    lines = lines_on_a_terminal(monkeypatch, capsys, columns, [row], spare=JUDGED_SPARE_COLUMNS)

    assert max(map(len, lines)) <= 80
    assert any(
        {"27", "-6.67606e-13", "-1.23456e-12", "promote"} <= {*line.split()} for line in lines
    )
    assert "(without step, bracket, n_ranked: the terminal is narrow)" in lines


def test_columns_of_text_are_narrowed_rather_than_numbers(monkeypatch, capsys):
    numbers = (2**63 - 1, -(2**63), 1.234567e-300)
    text = "a long text that fits in several short lines"

    lines = lines_on_a_terminal(
        monkeypatch, capsys, ("a", "b", "c", "name", "d"), [(*numbers, text, -math.inf)]
    )

    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert {"9223372036854775807", "-9223372036854775808", "1.23457e-300", "-Infinity"} <= {*words}
    assert {*text.split()} <= {*words}


def test_columns_with_numbers_that_have_no_room_are_left_out_whole(monkeypatch, capsys):
    lines = lines_on_a_terminal(monkeypatch, capsys, "abcde", [[2**62 + n for n in range(5)]])

    assert max(map(len, lines)) <= 80
    assert [str(2**62 + n) for n in range(3)] in [line.split() for line in lines]
    assert "(without d, e: the terminal is narrow)" in lines


def test_number_that_is_wider_than_the_terminal_is_left_to_the_terminal(monkeypatch, capsys):
    lines = lines_on_a_terminal(monkeypatch, capsys, ("a", "b"), [(2**63 - 1, 1)], width=12)

    assert str(2**63 - 1) in [line.strip() for line in lines]


def test_numbers_and_times_in_narrow_texts_are_not_broken(monkeypatch, capsys):
    params = {"optimizer/lr": 1.234567e-05, "optimizer/seed": 2**63 - 1, "sizes": [2**40, 64]}
    at = datetime(2026, 11, 28, 18, 41, 3, tzinfo=UTC)
    columns = ("state", "value", "last_step", "started_at", "params")
    row = ("TERMINATED", 2**62, 7, at, params)

    lines = lines_on_a_terminal(monkeypatch, capsys, columns, [row], width=70)

    assert max(map(len, lines)) <= 70
    words = {*" ".join(lines).split()}
    assert {"2026-11-28", "18:41:03Z", "1.23457e-05", str(2**63 - 1), f"[{2**40},"} <= words
