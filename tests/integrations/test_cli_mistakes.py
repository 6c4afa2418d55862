"""A user's mistake gives one line and an exit code, never a traceback."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from harness import arrange

from studydb.db import connect, revisions
from studydb.study import storage

CREATE = ("create", "digits", "--metric", "error", "--mode", "min")
WORKER = ("worker", "--study", "digits")

INVALID = [
    (("crate",), "There is no command 'crate'. Did you mean 'create'?"),
    (("xyz",), "There is no command 'xyz'."),
    (("--bogus",), "No such option"),
    (("create", "digits"), "Missing option '--metric'"),
    (("create", "digits", "--metric", "error"), "Missing option '--mode'. Choose from: min, max"),
    ((*CREATE[:-1], "least"), "'least' is not one of 'min', 'max'"),
    ((*CREATE, "--num-trials", "many"), "'many' is not a valid integer"),
    ((*CREATE, "--num-trials", "0"), "num_trials is 0; it must be an integer of 1 or more"),
    ((*CREATE, "--max-concurrent", "0"), "max_concurrent is 0"),
    ((*CREATE, "--max-failures", "-2"), "max_failures is -2"),
    ((*CREATE, "--param", "lr"), "expected '=' after the name"),
    ((*CREATE, "--param", "lr=loguniform(1e-4"), "expected ',' or ')'"),
    ((*CREATE, "--param", "lr=logunifrm(1e-4,1)"), "Did you mean 'loguniform'"),
    ((*CREATE, "--param", "lr=loguniform(0,1)"), "Parameter 'lr'"),
    ((*CREATE, "--param", "lr=uniform(0,1)", "--param", "lr=3"), "'lr' is given twice"),
    ((*CREATE, "--param", "lr=nan"), "lr=nan"),
    ((*CREATE, "--param", "lr=__import__('os')"), "There is no distribution '__import__'"),
    ((*CREATE, "--"), "The command after `--` is empty. Write the program that trains a trial"),
    ((*CREATE, "echo"), "'echo' is an unexpected argument"),
    ((*CREATE, "--keep", "best"), "keep is 'best'; write for example 'last=3, best=1'"),
    (("create", *CREATE[2:], "--", "nice", "sh"), "Missing argument 'NAME' before `--`"),
    (
        (*CREATE, "--", "sh", "-c", 'echo "{"error": 1}"'),
        'a placeholder, {"error": 1}, whose text would be run as code',
    ),
    ((*CREATE, "--space", "none.json"), "Cannot read 'none.json': No such file or directory"),
    ((*CREATE, "--scheduler", "ASHA(max_t="), "Cannot read 'ASHA(max_t='"),
    (
        (*CREATE, "--scheduler", "asha(max_t=3)"),
        "no scheduler 'asha'; there are ASHA, FIFO, HyperBand, MedianStopping, OneEpoch. Did",
    ),
    ((*CREATE, "--scheduler", "ASHA(max=3)"), "ASHA has no argument 'max'"),
    ((*CREATE, "--scheduler", "ASHA"), "Cannot make ASHA"),
    ((*CREATE, "--scheduler", "ASHA(max_t=0)"), "it needs 1 <= grace_period <= max_t"),
    ((*CREATE, "--searcher", "Random"), "no searcher 'Random'"),
    (
        (*CREATE, "--searcher", "GridSearch", "--param", "lr=uniform(0,1)"),
        "A grid cannot enumerate",
    ),
    ((*CREATE, "--stop", "loss"), "is not a comparison; write for example 'loss>=3'"),
    ((*CREATE, "--stop", "loss>=much"), "needs a number, not 'much'"),
    (("create", "a/b", *CREATE[2:]), "The study name 'a/b' holds a '/'"),
    (("create", " a", *CREATE[2:]), "begins or ends with a space"),
    (("create", "a" * 201, *CREATE[2:]), "has 201 characters"),
    (("create", "a\nb", *CREATE[2:]), "a character that cannot be printed"),
    (("create", "digits", "--metric", 'a"b', "--mode", "min"), "The metric name"),
    (("show", "digits", "1.5"), "'1.5' is neither a trial number nor a trial's name; trial"),
    (("enqueue", "digits", "--name", "7"), "'7' could be taken for a trial's number; add a"),
    (("enqueue", "digits", "--name", "a" * 201), "has 201 characters; at most 200 are allowed"),
    (("enqueue", "digits", "--name", "a/b"), "The trial name 'a/b' holds a '/'"),
    (("enqueue", "digits", "--name", "a\x1b[31m"), "a character that cannot be printed"),
    (("enqueue", "digits", "--tag", "a,b"), "The tag 'a,b' holds a ','; give each tag by itself"),
    (("pause", "digits", "1", "-2"), "No such option"),
    (
        ("enqueue", "digits", "lr"),
        "'lr' has no '='; give each parameter as PARAM=VALUE, such as lr",
    ),
    (("enqueue", "digits", "lr=uniform(0,1)"), "'lr' is the distribution uniform(0.0, 1.0)"),
    (("extend", "digits"), "Missing option '--trials'"),
    (("trials", "digits", "--state", "DONE"), "'DONE' is not one of"),
    (("trials", "digits", "--format", "xml"), "'xml' is not one of 'table', 'json', 'csv'"),
    (("worker",), "Missing option '--study'"),
    ((*WORKER, "--slots", "0"), "0 is not in the range"),
    ((*WORKER, "--lease", "0.1"), "--lease is 0.1; give 1 second or more, not infinity"),
    ((*WORKER, "--lease", "nan"), "--lease is nan; give 1 second or more, not infinity"),
    ((*WORKER, "--lease", "inf"), "--lease is inf; give 1 second or more, not infinity"),
    ((*WORKER, "--patience", "nan"), "--patience is nan; give 0 seconds"),
    ((*WORKER, "--workdir", "nowhere"), "nowhere does not exist"),
    (("db", "downgrade", "base"), "Add --yes to confirm"),
    (("query",), "Missing argument 'SQL'"),
    (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    (("db", "roles"), "SQLite has no roles"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID, ids=lambda value: str(value)[:60])
def test_invalid_command_line_exits_with_2_and_creates_nothing(
    bare_console, here, arguments, message
):
    ran = bare_console(*arguments, code=2)

    assert message in ran.error
    assert list(here.iterdir()) == []


URLS = [
    ("mysql://u:hunter2@host/db", 2, "PostgreSQL or SQLite, not in 'mysql'"),
    ("studies", 2, "'studies' is no storage URL"),
    ("sqlite://", 2, "An SQLite database in memory is lost"),
    ("sqlite:///:memory:", 2, "An SQLite database in memory is lost"),
    ("postgresql://u:hunter2@host:port/db", 2, "is no storage URL"),
    ("postgresql://u:hun@ter2@localhost/db", 2, "Write an '@' in a password as %40"),
    ("postgresql://u:hunter2@localhost/db?pooler=session", 2, "can only be `transaction`"),
    ("postgresql://u:hunter2@localhost:1/db?color=red", 2, "invalid connection option"),
    ("postgresql://u:hunter2@localhost:1/db", 1, "Is the server running, and is the URL right?"),
    ("postgres://u:hunter2@localhost:1/db", 1, "Is the server running, and is the URL right?"),
    ("postgresql://localhost:1/db?password=hunter2", 1, "Is the server running"),
    ("sqlite:///missing.db", 1, "here/missing.db. `studydb create` or `studydb db upgrade` makes"),
    ("sqlite:///no/folder/studydb.db", 1, "here/no/folder of the database does not exist"),
    ("sqlite:////", 1, "is a folder"),
    ("postgresql://me:***@localhost:1/db", 2, "contains ***, which studydb prints instead of"),
    ("sqlite://mine.db", 2, "lacks a slash. Write sqlite:///mine.db"),
    ("sqlite://lab/mine.db", 2, "or sqlite:////lab/mine.db for /lab/mine.db."),
]


@pytest.mark.parametrize(("url", "code", "message"), URLS, ids=[url for url, *_ in URLS])
def test_error_for_a_wrong_url_hides_its_password(bare_console, here, url, code, message):
    ran = bare_console("status", "--storage", url, code=code)

    assert message in ran.error
    assert "ter2" not in ran.err
    assert list(here.iterdir()) == []


WORKER_URLS = [URLS[0], *URLS[8:10], URLS[11]]
"""A URL of MySQL, two of a server that does not run, and one of a missing file."""


@pytest.mark.parametrize(
    ("url", "code", "message"), WORKER_URLS, ids=[url for url, *_ in WORKER_URLS]
)
def test_error_of_a_worker_for_a_wrong_url_hides_its_password(
    bare_console, here, url, code, message
):
    ran = bare_console(*WORKER, "--patience", "0", "--storage", url, code=code)

    assert message in ran.error
    assert "ter2" not in ran.err
    assert list(here.iterdir()) == []


def test_error_for_a_file_that_cannot_be_created_is_one_line(bare_console, here):
    (here / "studydb.db").symlink_to("no/such/folder/studydb.db")  # even root cannot make this file

    for command in (CREATE, ("hello",), ("db", "upgrade")):
        ran = bare_console(*command, code=1)
        assert "cannot be opened. Check the path and its" in ran.error


def test_error_for_a_refused_login_is_one_line(bare_console, postgres_url):
    ran = bare_console(
        "status", "--storage", postgres_url.replace("postgres@", "nobody-here@", 1), code=1
    )

    assert "refuses the login. Check user and password" in ran.error


def test_error_for_a_missing_database_names_createdb(bare_console, postgres_url):
    head, _, tail = postgres_url.partition("?")

    ran = bare_console("status", "--storage", f"{head.rpartition('/')[0]}/nowhere?{tail}", code=1)

    assert "Create it with `createdb`" in ran.error


@pytest.mark.parametrize("command", ["status", "studies", "workers", "query"])
def test_error_for_a_database_without_tables_names_db_upgrade(
    bare_console, empty_postgres_url, command
):
    arguments = [command, "SELECT 1"] if command == "query" else [command]

    ran = bare_console(*arguments, "--storage", empty_postgres_url, code=1)

    assert "has no studydb tables. Run `studydb db upgrade` on it" in ran.error


OF_ANOTHER_PROGRAM = (
    "has no studydb tables, but other tables, such as 'theirs'. Give the URL of the database that "
    "has your studies; or run `studydb db upgrade`, which adds studydb's tables to this database."
)


def test_error_for_an_sqlite_file_of_another_program_names_one_of_its_tables(bare_console, here):
    with closing(sqlite3.connect(here / "other.db")) as theirs:
        theirs.execute("CREATE TABLE theirs (id int)")

    ran = bare_console("studies", "--storage", "sqlite:///other.db", code=1)

    assert OF_ANOTHER_PROGRAM in ran.error


def test_error_for_a_server_database_of_another_program_names_one_of_its_tables(
    bare_console, empty_postgres_url
):
    with closing(psycopg.connect(empty_postgres_url, autocommit=True)) as theirs:
        theirs.execute("CREATE TABLE theirs (id int)")

    ran = bare_console("studies", "--storage", empty_postgres_url, code=1)

    assert OF_ANOTHER_PROGRAM in ran.error


@pytest.mark.parametrize(
    ("variable", "value", "command", "words"),
    [
        ("STUDYDB_WORKER_SLOTS", "abc", WORKER, "Invalid value for '--slots': 'abc' is not a"),
        ("STUDYDB_FORMAT", "xml", ("studies",), "Invalid value for '--format': 'xml' is not"),
    ],
)
def test_error_for_a_wrong_environment_variable_names_the_variable(
    console, monkeypatch, *, variable, value, command, words
):
    monkeypatch.setenv(variable, value)

    ran = console(*command, code=2)

    assert ran.error.startswith(f"studydb: ${variable} is wrong. {words}")


def test_error_for_a_wrong_option_does_not_name_its_environment_variable(console, monkeypatch):
    monkeypatch.setenv("STUDYDB_WORKER_SLOTS", "2")

    ran = console(*WORKER, "--slots", "abc", code=2)

    assert ran.error.startswith("studydb: Invalid value for '--slots': ")


def test_error_for_a_file_that_is_no_database_is_one_line(bare_console, here):
    (here / "notes.db").write_text("Dear diary, " * 100)

    ran = bare_console("status", "--storage", "sqlite:///notes.db", code=1)

    assert "not an SQLite database, or it is damaged" in ran.error


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("9999", f"has schema 9999, this studydb knows {revisions.HEAD} at most. Upgrade studydb"),
        ("0000", f"has schema 0000, this studydb needs {revisions.HEAD}. Run `studydb db upgrade`"),
    ],
)
def test_error_for_an_older_or_newer_schema_says_what_to_upgrade(
    console, database, monkeypatch, revision, message
):
    monkeypatch.setattr("studydb.db.revisions.REVISIONS", ("0000", *revisions.REVISIONS))
    arrange.change(database, f"UPDATE studydb_version SET version_num = '{revision}'")

    for command in (["status"], WORKER, CREATE, ["db", "check"]):
        assert message in console(*command, code=1).error


def test_write_in_a_session_that_may_only_read_fails_without_retries(
    bare_console, postgres_url, monkeypatch
):
    database = connect(postgres_url)
    study = arrange.new_study(database, num_trials=None)
    database.close()
    monkeypatch.setattr(storage, "CONTROL_PATIENCE_S", 1e9)
    monkeypatch.setenv(
        "STUDYDB_STORAGE", f"{postgres_url}&options=-c%20default_transaction_read_only%3Don"
    )

    ran = bare_console("enqueue", study.name, code=1)

    assert (
        "'postgres' can only read, because its default_transaction_read_only is on. " in ran.error
    )
    assert "status   RUNNING" in bare_console("status", study.name).lines


def test_unwritable_sqlite_file_refuses_writes_and_can_be_read(
    bare_console, sqlite_url, monkeypatch
):
    database = connect(sqlite_url)
    study = arrange.new_study(database)
    arrange.SimulatedWorker(database, study).take().finish(0.5)
    database.close()
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_url)
    forbid_writing(database.path)

    ran = bare_console("enqueue", study.name, code=1)
    best = bare_console("best", study.name)

    assert "cannot be written: check the rights of file and folder" in ran.error
    assert "0.5" in best.out


REFUSED = [
    (("status", "digts"), 1, "There is no study 'digts' in {url}. Did you mean 'digits'?"),
    (("worker", "--study", "digts"), 1, "Did you mean 'digits'?"),
    (("rename", "digts", "new"), 1, "Did you mean 'digits'?"),
    (("delete", "digts"), 1, "Did you mean 'digits'?"),
    (("delete", "digts", "--yes"), 1, "Did you mean 'digits'?"),
    (("trials", "unheard"), 1, "There is no study 'unheard' in {url}. `studydb studies` lists"),
    (("show", "digits", "99"), 1, "Study 'digits' has no trial 99. Its newest trial is "),
    (("show", "digits", "first"), 1, "Study 'digits' has no trial named 'first'. Trials without"),
    (("stop", "digits", "first"), 1, "Study 'digits' has no trial named 'first'."),
    (("results", "digits", "99"), 1, "Study 'digits' has no trial 99"),
    (("logs", "digits", "99"), 1, "Study 'digits' has no trial 99"),
    (("show", "digits", "9" * 30), 2, f"'{'9' * 30}' is too large for the number of a trial"),
    (("clone", "digits", "endless"), 1, "in {url}. Choose another name, or delete it: `studydb"),
    (("logs", "digits", "0"), 1, "Trial 0 of 'digits' has not run yet"),
    (("pause", "digits", "0", "99"), 1, "Study 'digits' has no trial 99"),
    (("stop", "digits", "1"), 1, "Trial 1 of 'digits' has ended (TERMINATED, CANCELLED)"),
    (("resume", "digits", "1"), 1, "ended trials do not change"),
    (("best", "digits"), 1, "No trial of study 'digits' has reported 'loss' yet"),
    (("enqueue", "digits", "lr=0.5"), 1, "has its 2 trials already. Raise the number first"),
    (("enqueue", "digits", "lr=7"), 2, "Parameter 'lr' is 7, which is not in loguniform"),
    (("enqueue", "digits", "rl=0.5"), 2, "There is no parameter 'rl' in this study; it has 'lr'."),
    (("enqueue", "digits", "lr=1e999"), 2, "lr=1e999"),
    (("enqueue", "digits", "epochs=3"), 2, "is the constant 27 in this study, not 3"),
    (("extend", "digits", "--trials", "0"), 2, "'--trials': 0 is not in the range 1<=x<="),
    (
        ("extend", "digits", "--trials", str(10**20)),
        2,
        f"'--trials': {10**20} is not in the range 1<=x<={2**62}",
    ),
    (("extend", "endless", "--trials", "5"), 1, "so there is no number to raise"),
    (("set", "digits", "max_steps=9", "--"), 2, "The command after `--` is empty"),
    (WORKER, 1, "has no trainable: its trials are run by the user's own program"),
    (CREATE, 1, "A study 'digits' already exists in {url}. Choose another name"),
    ((*CREATE, "--if-not-exists"), 1, "Study 'digits' exists with another metric"),
    (("create", "x", *CREATE[2:], "--trainable", "nope:f"), 1, "Python finds no module 'nope'"),
    (("create", "x", *CREATE[2:], "--trainable", "nope"), 1, "is not an import path; write 'modu"),
    (("query", "SELECT nope FROM v_trial"), 2, "The database refuses the query: "),
    (("query", "SELECT * FROM nope"), 2, "The database refuses the query: "),
    (("query", "SELECT FROM FROM"), 2, "syntax error"),
    (
        ("query", "SELEKT 1"),
        2,
        "begins with SELECT, WITH, VALUES, TABLE, SHOW or EXPLAIN, not 'SEL",
    ),
    (("query", "/* open SELECT 1"), 2, "or EXPLAIN; close comments before it, and nest none."),
    (("query", "DELETE FROM trial"), 2, "`studydb query` only reads"),
    (("query", "DROP TABLE trial"), 2, "`studydb query` only reads"),
    (("query", "UPDATE trial SET state = 'ERROR'"), 2, "`studydb query` only reads"),
    (("query", ""), 2, "`studydb query` only reads"),
    (("query", ";"), 2, "`studydb query` only reads"),
    (("query", "SELECT '\udcff'"), 2, r"The argument 'SELECT '\xff'' is not Unicode text"),
]


ON_POSTGRESQL = [case for case in REFUSED if case[0][0] in ("query", "create")]
"""Refusals that are also tested on PostgreSQL, because the database raises some of the errors."""


@pytest.mark.parametrize(
    ("storage_url", "arguments", "code", "message"),
    [("sqlite", *case) for case in REFUSED] + [("postgresql", *case) for case in ON_POSTGRESQL],
    indirect=["storage_url"],
    ids=lambda value: str(value)[:60],
)
def test_refused_command_prints_one_line_and_changes_nothing(
    console, database, arguments, code, message
):
    study = arrange.new_study(database, name="digits", num_trials=2)
    arrange.new_study(database, name="endless", num_trials=None)
    arrange.enqueued(database, study)
    arrange.enqueued(database, study)
    console("stop", "digits", "1")
    before = arrange.dump(database)

    ran = console(*arguments, code=code)

    assert message.format(url=database.url) in ran.error
    assert arrange.dump(database) == before


def forbid_writing(path):
    """Give the file a format that SQLite only reads, because permissions do not stop root."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\x03")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls",), "There is no command 'ls'. In studydb: `studydb studies`"),
        (("run",), "`studydb worker --study NAME`"),
        (("init",), "`studydb create NAME …`"),
        (("list",), "`studydb studies`"),
        (("optimize",), "`studydb worker --study NAME`"),
        ((*CREATE, "--num-samples", "3"), "In studydb: num_trials=N of create_study (`--num-tr"),
        ((*CREATE, "--n-trials", "3"), "`--num-trials N`"),
        ((*CREATE, "--direction", "minimize"), 'mode="min" of create_study'),
    ],
)
def test_error_for_a_command_or_option_of_another_tool_names_the_studydb_equivalent(
    bare_console, here, arguments, message
):
    ran = bare_console(*arguments, code=2)

    assert message in ran.error
    assert list(here.iterdir()) == []
