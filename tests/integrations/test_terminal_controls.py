"""What a trial prints, and what anyone writes into a row, does not steer a terminal."""

import io
import os
import pty
import subprocess
import sys

import pytest
from fleet.stage import Stage
from harness import arrange

from studydb.analysis.progress_line import ProgressLine
from studydb.cli.logs import Tail
from studydb.domain.life.states import Mode, Reason
from studydb.domain.objective import Objective
from studydb.domain.records import Counts, Failure
from studydb.domain.text.display import printed, visible, without_controls

STEER = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\u202e"
RAW = [character for character in STEER if not character.isprintable()]


def is_clean(text):
    return not [character for character in RAW if character in text]


@pytest.fixture
def told(database):
    """A trial that failed with a message that would steer a terminal, and a worker's host so."""
    study = arrange.new_study(database, name="digits")
    worker = arrange.SimulatedWorker(database, study)
    failure = Failure(f"Evil{STEER}", f"no {STEER}\n{STEER}", f"Traceback {STEER}\n{STEER}")
    worker.take().finish(outcome=Reason.FAILED, failure=failure)
    with database.begin() as txn:
        for sql in (
            "UPDATE worker SET host = {}",
            "UPDATE attempt SET log_dir = {}, log_tail = {}",
            "UPDATE event SET kind = 'checkpoint failed', data = {json}, trial_id = 1",
        ):
            text = STEER.replace("'", "''")
            data = '{"error": "\\u001b[2J", "url": 5}'
            txn.raw(sql.format(f"'{text}'", f"'{text}'", json=f"'{data}'"))
    return study


LOOKS = [
    ("status", "digits"),
    ("status",),
    ("trials", "digits"),
    ("show", "digits", "0"),
    ("workers",),
    ("workers", "digits"),
    ("query", "SELECT error_type, error_message, traceback, log_dir, log_tail FROM attempt"),
    ("query", f'SELECT 1 AS "{STEER}"'),
]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("arguments", LOOKS, ids=lambda arguments: " ".join(arguments)[:20])
def test_commands_print_no_control_character_of_a_row(console, told, arguments, form):
    ran = console(*arguments, "--format", form)

    assert ran.out
    assert is_clean(ran.out + ran.err)


def test_error_that_quotes_a_query_is_one_line_without_control_characters(console, told):
    ran = console("query", f'SELECT x FROM "{STEER}"', code=2)

    assert is_clean(ran.err)
    assert len(ran.err.splitlines()) == 1


def test_worker_prints_a_trials_error_without_control_characters(storage_url, tmp_path):
    with Stage(storage_url, tmp_path) as stage:
        stage.create("loading:steering")

        worker = stage.start()
        worker.exit_code(60)

        assert "FAILED" in worker.output()
        assert "owned" in worker.output()
        assert is_clean(worker.output())


SAYS = """
import sys
from studydb.__main__ import main
main(sys.argv[1:])
"""


def on_a_terminal(*arguments, storage, env=()):
    """What a command prints on a terminal of its own."""
    leader, follower = pty.openpty()
    environment = os.environ | {"STUDYDB_STORAGE": storage} | dict(env)
    process = subprocess.Popen(
        [sys.executable, "-c", SAYS, *arguments],
        stdout=follower,
        stderr=follower,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(follower)
    said = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not data:
            break
        said += data
    os.close(leader)
    assert process.wait(30) == 0, said
    return said.decode()


def test_logs_escapes_control_characters_on_a_terminal_and_not_in_a_pipe(storage_url, tmp_path):
    with Stage(storage_url, tmp_path) as stage:
        stage.create("loading:steering")
        stage.start().exit_code(60)

        said = on_a_terminal("logs", "staged", "0", storage=storage_url)
        piped = subprocess.run(
            [sys.executable, "-c", SAYS, "logs", "staged", "0"],
            env=os.environ | {"STUDYDB_STORAGE": storage_url},
            capture_output=True,
            check=True,
        )

    assert is_clean(said)
    assert "red and\ttabs, é" in said
    assert "\\x1b]0;owned" in said
    assert STEER.encode() in piped.stdout
    assert b"\x1b[31mred\x1b[0m and\ttabs" in piped.stdout


def test_tail_keeps_an_incomplete_character_for_the_next_call(tmp_path):
    tail = Tail(tmp_path / "stdout")

    assert [tail.shown(part) for part in (b"a\xc3", b"\xa9b\xff", b"\x1b[2J")] == [
        "a",
        "éb\\xff",
        "\\x1b[2J",
    ]


def test_progress_line_prints_no_control_character():
    stream = io.StringIO()
    progress = ProgressLine(f"d{STEER}", Objective(f"m{STEER}", Mode.MIN), stream=stream)

    progress.update(Counts(0, 0, 0, 0, 0), None, 1.0)
    progress.show_message(f"trial 0 {STEER}")
    progress.close()

    assert is_clean(stream.getvalue())


def test_text_for_terminals_keeps_letters_of_all_scripts_and_escapes_controls():
    assert visible("é 漢字 a b") == "é 漢字 a b"
    assert visible("a\nb\t\x1b") == "a\\nb\\t\\x1b"
    assert visible("a\nb\t\x1b", keep="\n\t") == "a\nb\t\\x1b"
    assert without_controls("a\nb\t\x1b\x9b\x7f\u200d\xa0") == "a\nb\t\\x1b\\x9b\\x7f\u200d\xa0"
    assert printed("10%\r20%\r\n\x1b[1;31mred\x1b[0m\x1b[2J") == "10%\n20%\nred\\x1b[2J"
