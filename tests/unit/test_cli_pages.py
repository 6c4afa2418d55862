"""Parts of pages: who gets how many rows, which columns fit, what a progress line says."""

import io
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studydb.analysis.expanding import expanded_names
from studydb.analysis.progress_line import ProgressLine
from studydb.cli.printing import _left_out
from studydb.cli.query import _distinct
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.records import Counts
from studydb.domain.text.display import duration_text
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
def test_page_is_shared_fairly(sizes, shares):
    assert share(sizes, 20) == shares


@given(st.dictionaries(st.integers(), st.integers(0, 40), max_size=6), st.integers(0, 30))
def test_page_is_full_or_shows_everything(sizes, most):
    shares = share(sizes, most)

    assert sum(shares.values()) == min(most, sum(sizes.values()))
    assert all(shares[group] <= size for group, size in sizes.items())


def test_narrow_terminal_loses_spare_columns_in_their_order_and_no_more_than_needed():
    widths = {"number": 6, "value": 10, "params": 20}

    assert _left_out(widths, ["value", "number"], line_width=42) == []
    assert _left_out(widths, ["value", "number"], line_width=40) == ["value"]
    assert _left_out(widths, ["value", "number"], line_width=5) == ["value", "number"]


def test_columns_of_the_same_name_are_numbered():
    assert _distinct(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]


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
def test_clashing_name_is_preceded_and_others_are_kept(first, others, columns):
    named = expanded_names(first, others, taken=["number", "state"], prefix="param/")

    assert named == columns
    assert list(named) == list(columns)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_without_terminal_says_a_line_every_few_seconds_and_the_last_one():
    seconds = [0.0]
    stream = io.StringIO()
    progress = ProgressLine(
        "digits", Objective("error", Mode.MIN), stream=stream, clock=lambda: seconds[0]
    )

    with closing(progress):
        for done in range(8):
            progress.update(Counts(pending=7 - done, running=1, terminated=done), 0.5, seconds[0])
            seconds[0] += 1
        progress.update(Counts(terminated=8), 0.25, 75.0)

    assert stream.getvalue().splitlines() == [
        "digits: 7 PENDING, 1 RUNNING; best error (min): 0.5  [0 s]",
        "digits: 2 PENDING, 1 RUNNING, 5 TERMINATED; best error (min): 0.5  [5 s]",
        "digits: 0 RUNNING, 8 TERMINATED; best error (min): 0.25  [1 min 15 s]",
    ]


def test_progress_says_nothing_twice_and_nothing_before_an_update():
    stream = io.StringIO()

    ProgressLine("digits", Objective("error", Mode.MAX), stream=stream, clock=lambda: 0.0).close()
    with closing(
        ProgressLine("digits", Objective("error", Mode.MAX), stream=stream, clock=lambda: 0.0)
    ) as progress:
        progress.update(Counts(), None, 0)
        progress.update(Counts(), None, 0)

    assert stream.getvalue() == "digits: 0 RUNNING; best error (max): none yet  [0 s]\n"


def test_progress_on_a_terminal_is_drawn_over_itself():
    stream = Terminal()

    with closing(
        ProgressLine("digits[red]", Objective("error", Mode.MIN), stream=stream)
    ) as progress:
        progress.update(Counts(running=1), None, 0)
        progress.update(Counts(running=2), 0.5, 1)

    assert "\x1b[2K" in stream.getvalue()
    assert "digits[red]: 2 RUNNING; best error (min): 0.5  [1 s]" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7265, "2 h 1 min")]
)
def test_durations_are_written_as_people_write_them(seconds, text):
    assert duration_text(seconds) == text
