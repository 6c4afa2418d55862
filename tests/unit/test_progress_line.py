"""The progress line of a run, with and without a terminal."""

import io
import math
from contextlib import closing

from studydb.analysis.progress_line import ProgressLine
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.records import Counts


class Terminal(io.StringIO):
    def isatty(self):
        return True


def progress_line(name, stream, **clock):
    return closing(ProgressLine(name, Objective("error", Mode.MIN), stream=stream, **clock))


def printed(name, *updates, n_to_make=None, n_clones=0):
    stream = io.StringIO()
    with progress_line(name, stream, clock=lambda: 0.0) as progress:
        for counts, best_value, run_s in updates:
            progress.update(counts, best_value, run_s, n_to_make=n_to_make, n_clones=n_clones)
    return stream.getvalue()


def test_line_is_printed_every_five_seconds_and_at_the_end_without_a_terminal():
    seconds = [0.0]
    stream = io.StringIO()

    with progress_line("digits", stream, clock=lambda: seconds[0]) as progress:
        for done in range(8):
            progress.update(Counts(pending=7 - done, running=1, terminated=done), 0.5, seconds[0])
            seconds[0] += 1
        progress.update(Counts(terminated=8), 0.25, 75.0)

    assert stream.getvalue().splitlines() == [
        "digits: 7 PENDING, 1 RUNNING; best error (min): 0.5  [0 s]",
        "digits: 2 PENDING, 1 RUNNING, 5 TERMINATED; best error (min): 0.5  [5 s]",
        "digits: 0 RUNNING, 8 TERMINATED; best error (min): 0.25  [1 min 15 s]",
    ]


def test_nothing_is_printed_without_an_update_and_equal_lines_are_printed_once():
    assert printed("digits") == ""
    assert printed("digits", *[(Counts(), None, 0)] * 2) == (
        "digits: 0 RUNNING; best error (min): none yet  [0 s]\n"
    )


def test_line_shows_which_percentage_of_the_trials_that_the_budget_allows_have_ended():
    ended = Counts(running=2, terminated=9, error=1)

    assert printed("digits", (ended, 1 / 3, 12.0), n_to_make=13) == (
        "digits: 40 % of 25, 2 RUNNING, 9 TERMINATED, 1 ERROR; best error (min): 0.333333  [12 s]\n"
    )
    assert printed("digits", (ended, 1 / 3, 12.0), n_to_make=8, n_clones=2).startswith(
        "digits: 50 % of 20 with 2 clones, 2 RUNNING"
    )
    assert printed("mine", (Counts(running=2), math.inf, 1.0)) == (
        "mine: 2 RUNNING; best error (min): none finite yet (Infinity)  [1 s]\n"
    )


def test_line_on_a_terminal_is_overwritten_by_the_next_line():
    stream = Terminal()

    with progress_line("digits[red]", stream) as progress:
        progress.update(Counts(running=1), None, 0)
        progress.update(Counts(running=2), 0.5, 1)

    assert "\x1b[2K" in stream.getvalue()
    assert "digits[red]: 2 RUNNING; best error (min): 0.5  [1 s]" in stream.getvalue()


def test_line_wider_than_the_terminal_is_shortened_to_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    with progress_line("a study " * 9, stream) as progress:
        for seconds in range(3):
            progress.update(Counts(running=2, terminated=9), 0.25, float(seconds))

    assert "\N{HORIZONTAL ELLIPSIS}" in stream.getvalue()
    assert "\x1b[1A" not in stream.getvalue()  # the cursor never moves up a line
