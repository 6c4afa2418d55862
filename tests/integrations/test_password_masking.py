"""No output, file, row, traceback, repr or command line contains the storage URL's password."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from fleet.workers import TRAINABLES, Fleet
from harness import arrange
from harness.commands import run_command

import studydb
from studydb.cli.options import Storage
from studydb.db.urls import read_url
from studydb.domain.errors import StudydbError, StudyExists
from studydb.worker.worker_options import WorkerOptions

SECRET = "hunter2"
PASSWORD = f"{SECRET}/:@% é"
"""A password with characters that a URL has to escape."""


@pytest.fixture
def url(postgres_url):
    """A URL with a password; the server accepts any password."""
    return postgres_url.replace("postgres@", f"postgres:{quote(PASSWORD, safe='')}@", 1)


@pytest.fixture
def commands(url, tmp_path):
    """A function that runs a command as a process; its attribute `printed` collects all output."""
    printed = []

    def run(*arguments):
        command = [sys.executable, "-X", "dev", "-m", "studydb", *arguments]
        ran = run_command(command, cwd=tmp_path, env={**os.environ, "STUDYDB_STORAGE": url})
        printed.append(f"{arguments} -> {ran.returncode}\n{ran.stdout}{ran.stderr}")

    run.printed = printed
    return run


@pytest.fixture
def create(create_study, url):
    def create(n_trials=2):
        options = {"num_trials": n_trials, "storage": url, "workdir": TRAINABLES}
        return create_study("digits", "nosy:train", **options)

    return create


def assert_masked(*texts):
    for text in texts:
        place = text.find(SECRET)
        assert place < 0, text[max(0, place - 200) : place + 20]


def command_lines():
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return lines


METRIC = ("--metric", "loss", "--mode", "min")

COMMANDS = [
    ("db", "upgrade"),
    ("db", "check"),
    ("db", "current"),
    ("db", "roles"),
    ("create", "mine", *METRIC),
    ("create", "other", *METRIC, "--trainable", "studydb.examples.quadratic:train"),
    ("create", "mine", *METRIC),
    ("studies",),
    ("status",),
    ("status", "digits"),
    ("status", "nothing"),
    ("trials", "digits", "--format", "json"),
    ("show", "digits", "0"),
    ("show", "digits", "99"),
    ("results", "digits", "0"),
    ("best", "digits"),
    ("best", "mine"),
    ("workers", "--format", "csv"),
    ("logs", "digits", "0"),
    ("drain", "0"),
    ("pause", "digits"),
    ("resume", "digits"),
    ("enqueue", "mine"),
    ("enqueue", "mine", "nothing=3"),
    ("extend", "digits", "--trials", "1"),
    ("views", "digits"),
    ("rename", "mine", "yours"),
    ("rename", "yours", "digits"),
    ("query", "SELECT * FROM v_trial"),
    ("query", "SELECT nonsense"),
    ("query", "DELETE FROM trial"),
    ("delete", "yours"),
    ("delete", "yours", "--yes"),
    ("worker", "--study", "nothing"),
    ("worker", "--study", "digits", "--lease", "0.1"),
]


@pytest.fixture
def console(bare_console, url, tmp_path, monkeypatch):
    monkeypatch.setenv("STUDYDB_STORAGE", url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return bare_console


def output_of(console, *arguments):
    """Run a command, whatever its exit code, and return what it printed."""
    try:
        return str(console(*arguments))
    except AssertionError as error:
        return str(error)


@pytest.mark.nightly
def test_commands_and_workers_print_and_store_no_password(create, url, commands, console, tmp_path):
    study = create()
    with Fleet(url, "digits", tmp_path) as fleet:
        worker = fleet.start(slots=2)
        seen = []
        while worker.runs:
            seen += command_lines()
            time.sleep(0.1)
        worker.exit_code()
        words = worker.output()

    for arguments in COMMANDS:
        for options in ((), ("--storage", url)):
            assert_masked(output_of(console, *arguments, *options))
    for arguments in (("status", "nothing"), ("worker", "--study", "mine")):
        commands(*arguments)

    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    output = [file.read_text(errors="replace") for file in files]
    stored = [str(rows) for rows in arrange.dump(study.database).values()]
    assert any("deliberately" in text for text in output)
    assert any("nosy" in line or "worker" in line for line in seen)
    assert_masked(words, *seen, *output, *stored, *commands.printed)
    assert_masked(*map(repr, (study, study.record, study.database)), str(vars(study)))
    assert_masked(study.storage)


@pytest.mark.nightly
def test_study_run_prints_no_password(create, capfd):
    study = create(n_trials=1)
    seen = []
    done = threading.Event()

    def watch():
        while not done.is_set():
            seen.extend(command_lines())
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(studydb.StudyFailed) as raised:
        study.run(workers=1)
    done.set()
    watcher.join()

    captured = capfd.readouterr()
    assert any("--study=digits" in line for line in seen)
    assert_masked(captured.out, captured.err, str(raised.value), *seen)


STORAGES = {
    "no study": "{url}",
    "no database": "{gone}",
    "no server": "postgres://me:{secret}@localhost:1/db",
    "no host": "postgresql://me:{secret}@h.invalid/db",
    "in the query": "postgresql://localhost:1/d?password={secret}",
    "another database": "mysql://me:{secret}@h/d",
    "a libpq string": "host=h password='{secret} x' dbname=d",
    "no URL": "postgres:/h/d?password={secret}",
    "no port": "postgresql://me:{secret}@h:port/d",
}


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_tracebacks_of_storage_errors_contain_no_password(url, storage, capfd):
    gone = url.replace("studydb_test", "gone")

    with pytest.raises(StudydbError) as error:
        studydb.load_study("x", storage=storage.format(url=url, gone=gone, secret=SECRET))
    with pytest.raises(StudydbError):
        studydb.delete_study("x", storage=storage.format(url=url, gone=gone, secret=SECRET))

    captured = capfd.readouterr()
    assert_masked(*traceback.format_exception(error.value), str(error.value), repr(error.value))
    assert_masked(captured.out, captured.err)


def test_traceback_for_an_existing_name_contains_no_password(create):
    create()

    with pytest.raises(StudyExists) as error:
        create()

    assert_masked(*traceback.format_exception(error.value))


def test_repr_of_objects_with_a_url_contains_no_password(url):
    options = WorkerOptions(storage=url, study="digits", say=print)

    assert_masked(repr(options), repr(Storage(url, typed=True)), repr(read_url(url)))


def test_url_with_the_scheme_postgres_is_accepted(create, load_study, url, bare_console):
    study = create()
    other = url.replace("postgresql://", "postgres://", 1)

    found = load_study("digits", storage=other)
    ran = bare_console("status", "digits", "--storage", other)

    assert found.record.uuid == study.record.uuid
    assert "postgresql://postgres:***@" in ran.out
