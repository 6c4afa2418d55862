"""Neither the output of a trial nor the content of a row can control a terminal."""

import io
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest
from fleet.stage import Stage
from harness import arrange
from harness.turns import sqlite_alone

from studydb.analysis.progress_line import ProgressLine
from studydb.cli.logs import Tail
from studydb.domain.failures import Failure
from studydb.domain.life.states import Mode, Reason
from studydb.domain.objective import Objective
from studydb.domain.records import Counts
from studydb.domain.text.display import printed, visible, without_controls

storage_url = sqlite_alone

CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\u202e"
RAW = [character for character in CONTROLS if not character.isprintable()]


def is_clean(text):
    return not [character for character in RAW if character in text]


@pytest.fixture
def hostile_rows(database):
    """
    Rows of a failed trial, its worker and its events, with control characters.

    The characters are in the failure, the host, the output, its folder and the data of events.
    """
    study = arrange.new_study(database, name="digits")
    worker = arrange.SimulatedWorker(database, study)
    failure = Failure(
        f"Evil{CONTROLS}", f"no {CONTROLS}\n{CONTROLS}", f"Traceback {CONTROLS}\n{CONTROLS}"
    )
    worker.take().finish(outcome=Reason.FAILED, failure=failure)
    with database.begin() as txn:
        for sql in (
            "UPDATE worker SET host = {}",
            "UPDATE attempt SET log_dir = {}, log_tail = {}",
            "UPDATE event SET kind = 'checkpoint failed', data = {json}, trial_id = 1",
        ):
            text = CONTROLS.replace("'", "''")
            data = '{"error": "\\u001b[2J", "url": 5}'
            txn.raw(sql.format(f"'{text}'", f"'{text}'", json=f"'{data}'"))


COMMANDS = [
    ("status", "digits"),
    ("status",),
    ("trials", "digits"),
    ("show", "digits", "0"),
    ("workers",),
    ("workers", "digits"),
    ("query", "SELECT error_type, error_message, traceback, log_dir, log_tail FROM attempt"),
    ("query", f'SELECT 1 AS "{CONTROLS}"'),
]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:20])
def test_commands_print_no_control_character_of_a_row(console, hostile_rows, arguments, form):
    ran = console(*arguments, "--format", form)

    assert ran.out
    assert is_clean(ran.out + ran.err)


def test_error_that_quotes_a_query_is_one_line_without_control_characters(console, hostile_rows):
    ran = console("query", f'SELECT x FROM "{CONTROLS}"', code=2)

    assert is_clean(ran.error.rstrip("\n"))


def test_worker_prints_the_error_of_a_trial_without_control_characters(storage_url, tmp_path):
    with Stage(storage_url, tmp_path) as stage:
        stage.create("loading:steering")

        worker = stage.start()
        worker.exit_code(60)

        assert "FAILED" in worker.output()
        assert "owned" in worker.output()
        assert is_clean(worker.output())


STUDYDB = """
import sys
from studydb.__main__ import main
main(sys.argv[1:])
"""


def run_on_terminal(*arguments, storage):
    """Run a `studydb` command that prints to a new terminal; return what it printed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", STUDYDB, *arguments],
        stdout=follower,
        stderr=follower,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"STUDYDB_STORAGE": storage},
    )
    os.close(follower)
    printed = b""
    with suppress(OSError):  # Linux raises OSError when no process has the follower open
        while data := os.read(leader, 65536):
            printed += data
    os.close(leader)
    assert process.wait(30) == 0, printed
    return printed.decode()


@pytest.mark.nightly
def test_logs_escapes_control_characters_on_a_terminal_and_not_in_a_pipe(storage_url, tmp_path):
    with Stage(storage_url, tmp_path) as stage:
        stage.create("loading:steering")
        stage.start().exit_code(60)

        shown = run_on_terminal("logs", "staged", "0", storage=storage_url)
        piped = subprocess.run(
            [sys.executable, "-c", STUDYDB, "logs", "staged", "0"],
            env=os.environ | {"STUDYDB_STORAGE": storage_url},
            capture_output=True,
            check=True,
        )

    assert is_clean(shown)
    assert "red and\ttabs, é" in shown
    assert "\\x1b]0;owned" in shown
    assert CONTROLS.encode() in piped.stdout
    assert b"\x1b[31mred\x1b[0m and\ttabs" in piped.stdout


def test_tail_keeps_an_incomplete_character_for_the_next_call(tmp_path):
    tail = Tail(tmp_path / "stdout")

    shown = [tail.shown(part) for part in (b"a\xc3", b"\xa9b\xff", b"\x1b[2J")]

    assert shown == ["a", "éb\\xff", "\\x1b[2J"]


def test_progress_line_prints_no_control_character():
    stream = io.StringIO()
    progress = ProgressLine(f"d{CONTROLS}", Objective(f"m{CONTROLS}", Mode.MIN), stream=stream)

    progress.update(Counts(0, 0, 0, 0, 0), None, 1.0)
    progress.show_message(f"trial 0 {CONTROLS}")
    progress.close()

    assert is_clean(stream.getvalue())


def test_text_for_terminals_keeps_letters_of_all_scripts_and_escapes_controls():
    assert visible("é 漢字 a b") == "é 漢字 a b"
    assert visible("a\nb\t\x1b") == "a\\nb\\t\\x1b"
    assert visible("a\nb\t\x1b", keep="\n\t") == "a\nb\t\\x1b"
    assert without_controls("a\nb\t\x1b\x9b\x7f\u200d\xa0") == "a\nb\t\\x1b\\x9b\\x7f\u200d\xa0"
    assert printed("10%\r20%\r\n\x1b[1;31mred\x1b[0m\x1b[2J") == "10%\n20%\nred\\x1b[2J"
