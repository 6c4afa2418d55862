"""Texts of values, nouns and durations; what `studydb` prints if it ends before a command runs."""

import math
import os
import signal
import subprocess
import sys

import pytest

from studydb.domain.text.display import best_text, duration_text, value_text, with_article


@pytest.mark.parametrize(
    ("value", "text", "best"),
    [
        (1 / 3, "0.333333", "0.333333"),
        (27.0, "27", "27"),
        (math.inf, "Infinity", "none finite yet (Infinity)"),
        (-math.inf, "-Infinity", "-Infinity"),
        (math.nan, "NaN", "NaN"),
        (None, "none", "none yet"),
    ],
)
def test_values_have_six_digits_and_the_worst_possible_value_is_not_called_best(value, text, best):
    assert (value_text(value), best_text(value, "min")) == (text, best)


@pytest.mark.parametrize(
    ("value", "mode", "best"),
    [
        (math.inf, "min", "none finite yet (Infinity)"),
        (-math.inf, "min", "-Infinity"),
        (-math.inf, "max", "none finite yet (-Infinity)"),
        (math.inf, "max", "Infinity"),
    ],
)
def test_infinite_value_is_the_best_if_no_value_is_better_in_the_mode(value, mode, best):
    assert best_text(value, mode) == best


@pytest.mark.parametrize("noun", ["a str", "an int", "an object", "an OrderedDict", "a uint8"])
def test_noun_gets_its_article(noun):
    assert with_article(noun.split()[1]) == noun


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7265, "2 h 1 min")]
)
def test_duration_text_has_the_two_largest_units(seconds, text):
    assert duration_text(seconds) == text


def test_ctrl_c_during_imports_shows_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")

    ran = studydb("studies", PYTHONPATH=str(tmp_path))

    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ([b"status", b"caf\xe9"], {}, r"The argument 'caf\xe9' is not Unicode text"),
        ([b"studies"], {"STUDYDB_STORAGE": b"sqlite:///caf\xe9.db"}, "$STUDYDB_STORAGE, 'sqlite:"),
        ([b"studies", b"--storage", b"sqlite:///\xff.db"], {}, r"'sqlite:///\xff.db' is not Unic"),
    ],
)
def test_bytes_that_are_not_unicode_are_refused_with_one_line_of_text(
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
