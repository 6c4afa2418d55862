"""Values, progress and interrupts as people see them."""

import io
import math
import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from studydb.analysis.progress_line import ProgressLine
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.records import Counts
from studydb.domain.text.display import best_text, value_text


@pytest.mark.parametrize(
    ("value", "text", "best"),
    [
        (1 / 3, "0.333333", "0.333333"),
        (27.0, "27", "27"),
        (math.inf, "Infinity", "none finite yet (Infinity)"),
        (-math.inf, "-Infinity", "none finite yet (-Infinity)"),
        (math.nan, "NaN", "NaN"),
        (None, "none", "none yet"),
    ],
)
def test_values_have_six_digits_and_an_infinite_best_is_none(value, text, best):
    assert (value_text(value), best_text(value)) == (text, best)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_the_ended_share_of_the_budget():
    stream = io.StringIO()
    with closing(
        ProgressLine("digits", Objective("error", Mode.MIN), stream=stream, clock=lambda: 0.0)
    ) as progress:
        progress.update(Counts(running=2, terminated=9, error=1), 1 / 3, 12.0, num_trials=25)
    with closing(
        ProgressLine("mine", Objective("error", Mode.MIN), stream=stream, clock=lambda: 0.0)
    ) as progress:
        progress.update(Counts(running=2), math.inf, 1.0, num_trials=None)

    first, second = stream.getvalue().splitlines()
    assert first == (
        "digits: 40 % of 25, 2 RUNNING, 9 TERMINATED, 1 ERROR; best error (min): 0.333333  [12 s]"
    )
    assert second == "mine: 2 RUNNING; best error (min): none finite yet (Infinity)  [1 s]"


def test_line_that_is_wider_than_the_terminal_stays_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with closing(
        ProgressLine("a study " * 9, Objective("error", Mode.MIN), stream=stream)
    ) as progress:
        for seconds in range(3):
            progress.update(Counts(running=2, terminated=9), 0.25, float(seconds))

    drawn = stream.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" in drawn
    assert "\x1b[1A" not in drawn  # no second line to go back over


def test_ctrl_c_during_imports_shows_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")

    ran = studydb("studies", PYTHONPATH=str(tmp_path))

    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ([b"status", b"caf\xe9"], {}, r"The argument 'caf\xe9' is not Unicode text"),
        ([b"studies"], {"STUDYDB_STORAGE": b"sqlite:///caf\xe9.db"}, "$STUDYDB_STORAGE, 'sqlite:"),
        (
            [b"studies", b"--storage", b"sqlite:///\xff.db"],
            {},
            r"'sqlite:///\xff.db' is not Unicode",
        ),
    ],
)
def test_bytes_that_are_not_unicode_are_refused_in_one_line(
    tmp_path, arguments, environment, words
):
    ran = studydb(*arguments, cwd=tmp_path, **environment)

    assert ran.returncode == 2
    assert ran.stderr.startswith("studydb: ")
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def studydb(*arguments, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "studydb", *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
