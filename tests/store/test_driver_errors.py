"""
How studydb translates drivers' errors, and which connections it uses again or closes.

Some tests are about timeouts, the isolation of PostgreSQL's transactions, and SQLite's one writer.
"""

import os
import sqlite3
import time
from contextlib import closing, suppress

import psycopg
import pytest
import sqlalchemy.exc
from harness import postgres
from harness.arrange import change, dump, new_study, rows, token

from studydb.db import connections, sessions, sqlite_file
from studydb.db.faults import (
    Duplicate,
    LockTimeout,
    NoTables,
    is_disconnect,
    is_of_values,
    translate,
)
from studydb.db.metadata import METADATA
from studydb.domain.errors import (
    InvalidData,
    StorageBusy,
    StorageDenied,
    StorageError,
    StorageMissing,
    StorageReadOnly,
    StorageUnreachable,
)
from studydb.store import events

BUSY = ["40001", "40P01", "53300", "25006", "57014", "53100", "53200", "58030"]
GONE = [f"57P0{digit}" for digit in range(1, 6)]
GONE += ["25P03", "25P04", "08000", "08003", "08006", "08P01"]
REFUSED = ["28P01", "28000"]


def postgresql_error(code):
    return psycopg.errors.lookup(code)("what happened\nin detail")


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        *((code, StorageBusy) for code in BUSY),
        *((code, StorageUnreachable) for code in GONE),
        *((code, StorageError) for code in REFUSED),
        ("42P01", NoTables),
        ("23505", Duplicate),
        ("55P03", LockTimeout),
        ("42501", StorageDenied),
    ],
)
def test_sqlstate_determines_the_error_class(code, meaning):
    found = translate(postgresql_error(code), url="the database")

    assert type(found) is meaning
    assert "in detail" not in str(found)


UNFIT = ["22003", "22021", "22P05", "54000"]


@pytest.mark.parametrize(
    "error",
    [
        *map(postgresql_error, UNFIT),
        psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
        sqlite3.DataError("string or blob too big"),
        OverflowError("Python int too large to convert to SQLite INTEGER"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
def test_refused_value_is_invalid_data_and_no_disconnect(error):
    assert type(translate(error, url="the database")) is InvalidData
    assert not is_disconnect(error)
    assert is_of_values(error)


@pytest.mark.parametrize("code", [*BUSY, *GONE, *REFUSED, "42601", "42703", "XX000"])
def test_errors_of_the_server_and_of_wrong_statements_are_not_errors_of_values(code):
    assert not is_of_values(postgresql_error(code))


def test_connection_is_used_again_after_a_refused_value(database):
    study = new_study(database)

    with pytest.raises(InvalidData, match="cannot store a value"), database.begin() as txn:
        events.append(txn, study_id=2**70, kind="k", actor="a")
    with database.begin() as txn:
        events.append(txn, study_id=study.id, kind="k", actor="a")


@pytest.mark.parametrize("code", ["42601", "23514", "22012", "42703"])
def test_error_of_a_wrong_statement_is_not_translated(code):
    assert translate(postgresql_error(code), url="the database") is None


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), StorageUnreachable),
        (psycopg.InterfaceError("the connection is closed"), StorageUnreachable),
        (psycopg.OperationalError('database "x" does not exist'), StorageMissing),
        (psycopg.OperationalError('password authentication failed for user "x"'), StorageError),
        (psycopg.OperationalError("fe_sendauth: no password supplied"), StorageError),
    ],
)
def test_message_of_an_error_without_sqlstate_determines_the_error_class(error, meaning):
    assert type(translate(error, url="the database")) is meaning


@pytest.mark.parametrize("code", [*GONE, "25006"])
def test_sqlstate_of_a_lost_connection_or_of_a_read_only_server_is_a_disconnect(code):
    assert is_disconnect(postgresql_error(code))


@pytest.mark.parametrize("code", [*BUSY[:3], "55P03", "57014", "23505", "42P01"])
def test_sqlstate_of_a_failed_statement_is_no_disconnect(code):
    assert not is_disconnect(postgresql_error(code))


def sqlite_error(code, text="what happened", kind=sqlite3.OperationalError):
    error = kind(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (sqlite3.SQLITE_BUSY, StorageBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StorageBusy),
        (sqlite3.SQLITE_LOCKED, StorageBusy),
        (sqlite3.SQLITE_READONLY, StorageReadOnly),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StorageReadOnly),
        (sqlite3.SQLITE_CANTOPEN, StorageMissing),
        (sqlite3.SQLITE_FULL, StorageBusy),
        (sqlite3.SQLITE_IOERR_WRITE, StorageBusy),
        (sqlite3.SQLITE_NOTADB, StorageError),
        (sqlite3.SQLITE_CORRUPT, StorageError),
    ],
)
def test_sqlite_code_determines_the_error_class(code, meaning):
    assert type(translate(sqlite_error(code), url="the file")) is meaning


def test_sqlite_error_of_a_wrong_statement_is_translated_only_if_a_table_is_missing():
    assert translate(sqlite_error(sqlite3.SQLITE_ERROR, "near x"), url="the file") is None
    assert type(translate(sqlite3.OperationalError("no such table: x"), url="")) is NoTables


def delete_events(database, *, then=None, write=True):
    with database.begin(write=write) as txn:
        txn.raw("DELETE FROM event")
        if isinstance(then, BaseException):
            raise then
        if then == "abandon":
            txn.abandon()


@pytest.mark.parametrize(
    "failing",
    [
        {"then": "abandon"},
        {"then": RuntimeError()},
        {"then": KeyboardInterrupt()},
        {"then": SystemExit()},
        {"write": False},
    ],
    ids=str,
)
def test_failed_abandoned_or_read_only_block_changes_nothing_and_leaves_no_transaction_open(
    database, failing
):
    new_study(database)
    before = dump(database)

    with suppress(StorageError, RuntimeError, KeyboardInterrupt, SystemExit):
        delete_events(database, **failing)

    assert dump(database) == before
    change(database, "UPDATE study SET name = 'still here'")
    assert rows(database, "SELECT name FROM study") == [("still here",)]


def test_duplicate_found_at_the_commit_is_raised(database):
    study = new_study(database)

    def append(*tokens):
        with database.begin() as txn:
            for one in tokens:
                events.append(txn, study_id=study.id, kind="k", actor="a", token=one)

    append("once")
    with pytest.raises(Duplicate):
        append("once", token())

    assert rows(database, "SELECT token FROM event WHERE kind = 'k'") == [("once",)]


def test_statement_without_a_required_value_is_refused_before_it_is_sent(database):
    with database.begin() as txn, pytest.raises(TypeError, match="lacks actor, "):
        txn.run(events._APPEND, study_id=1)


PID = sqlalchemy.select(sqlalchemy.func.pg_backend_pid().label("pid"))


def test_killed_connection_raises_storage_unreachable(postgres_url, opened):
    database, killer = opened(postgres_url), opened(postgres_url)
    new_study(database)

    def be_killed():
        with database.begin() as txn:
            (row,) = txn.all(PID)
            change(killer, f"SELECT pg_terminate_backend({row.pid})")
            txn.raw("DELETE FROM event")

    with pytest.raises(StorageUnreachable):
        be_killed()

    assert rows(database, "SELECT count(*) FROM event") == [(1,)]


@pytest.mark.parametrize("write", [True, False])
def test_killed_connection_is_not_used_again_if_the_block_raises_its_own_error(
    postgres_url, opened, write
):
    database, killer = opened(postgres_url, connections=1), opened(postgres_url)

    def be_killed_and_fail():
        with database.begin(write=write) as txn:
            (row,) = txn.all(PID)
            change(killer, f"SELECT pg_terminate_backend({row.pid}, 5000)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        be_killed_and_fail()

    assert rows(database, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("frozen_while", ["idle", "sending"])
def test_server_releases_the_row_locks_of_a_frozen_client(
    postgres_url, opened, monkeypatch, frozen_while
):
    if frozen_while == "idle":
        monkeypatch.setitem(sessions._TIMEOUTS_MS, "idle_in_transaction_session_timeout", 100)
    else:
        monkeypatch.setattr(sessions, "TRANSACTION_TIMEOUT_S", 0.4)
    frozen = opened(postgres_url)
    monkeypatch.undo()
    other = opened(postgres_url)
    new_study(other)

    def freeze():
        with frozen.begin() as txn:
            txn.run(RENAME)
            if frozen_while == "idle":
                txn.all(PID)
            else:
                txn._cursor.connection.pgconn.flush()
                await_writer(other)
            # The update waits until the server has ended the connection of `frozen`.
            change(other, "UPDATE study SET name = 'theirs'")
            txn.all(PID)

    with pytest.raises(StorageUnreachable):
        freeze()

    assert rows(other, "SELECT name FROM study") == [("theirs",)]


WRITERS = """
    SELECT 1 FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND datname = current_database()"""


def await_writer(watcher):
    deadline = time.monotonic() + 10
    while not rows(watcher, WRITERS):
        assert time.monotonic() < deadline


STUDY = METADATA.tables["study"]
RENAME = sqlalchemy.update(STUDY).values(name="mine")


@pytest.mark.parametrize("pooler", ["", "pooler=transaction"])
def test_timeouts_and_isolation_are_set_with_and_without_a_pooler(postgres_url, opened, pooler):
    set_for_database(postgres_url, {"default_transaction_isolation": "'serializable'"})
    database = opened(f"{postgres_url}&{pooler}")

    found = rows(
        database,
        "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "
        "current_setting('idle_in_transaction_session_timeout'), "
        "current_setting('transaction_isolation')",
    )

    assert found == [("10s", "1min", "10s", "read committed")]


OF_OTHERS = {
    "DateStyle": "'German, DMY'",
    "extra_float_digits": "-5",
    "array_nulls": "off",
    "synchronous_commit": "off",
}
"""Settings of a database with which studydb could not work."""


@pytest.mark.parametrize("pooler", ["", "pooler=transaction"])
def test_settings_of_a_database_that_would_change_or_lose_values_have_no_effect(
    postgres_url, opened, pooler
):
    set_for_database(postgres_url, OF_OTHERS)
    database = opened(f"{postgres_url}&{pooler}")

    settings = ", ".join(f"current_setting('{name}')" for name in OF_OTHERS)
    found = rows(database, f"SELECT {settings}")
    moment, number = rows(database, "SELECT now(), 0.2187932411960396::float8")[0]

    style, *others = found[0]
    assert style.startswith("ISO")
    assert others == ["1", "on", "on"]
    assert moment.tzinfo is not None
    assert number == 0.2187932411960396


@pytest.mark.parametrize(
    ("setting", "options", "expected"),
    [
        ("remote_write", "", "remote_write"),
        ("on", "&options=-csynchronous_commit%3Doff", "off"),
    ],
)
def test_commits_wait_for_a_standby_as_set_and_for_no_disk_if_the_url_says_so(
    postgres_url, opened, setting, options, expected
):
    set_for_database(postgres_url, {"synchronous_commit": setting})
    database = opened(f"{postgres_url}{options}")

    assert rows(database, "SELECT current_setting('synchronous_commit')") == [(expected,)]


def set_for_database(url, settings):
    with closing(postgres.connect(url)) as connection:
        for name, value in settings.items():
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET {name} = {value}')
        connection.commit()


def test_no_statement_is_prepared_behind_a_pooler(postgres_url, opened):
    database = opened(f"{postgres_url}&pooler=transaction")
    for _ in range(7):
        new_study(database)

    assert rows(database, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]


def test_lock_timeout_raises_storage_busy(postgres_url, opened, monkeypatch):
    monkeypatch.setitem(sessions._TIMEOUTS_MS, "lock_timeout", 50)
    holder, waiter = opened(postgres_url), opened(postgres_url)
    new_study(holder)

    with holder.begin() as txn:
        txn.raw("UPDATE study SET name = 'mine'")
        txn.all(PID)
        with pytest.raises(StorageBusy, match="lock timeout"):
            change(waiter, "UPDATE study SET name = 'theirs'")


def test_writers_of_sqlite_take_turns_and_readers_do_not_wait(sqlite_url, opened, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0)
    first, second = opened(sqlite_url), opened(sqlite_url)
    new_study(first, name="before")

    with first.begin() as txn:
        txn.raw("UPDATE study SET name = 'after'")
        seen = rows(second, "SELECT name FROM study")
        with pytest.raises(StorageBusy, match="another process is writing"), second.begin():
            pass

    assert seen == [("before",)]
    assert rows(second, "SELECT name FROM study") == [("after",)]


@pytest.fixture
def only_connection(storage_url, opened, monkeypatch):
    """A database with a pool of one connection; a wait for this connection fails after 50 ms."""
    monkeypatch.setattr(connections, "WAIT_S", 0.05)
    return opened(storage_url, connections=1)


def test_wait_for_an_empty_pool_raises_storage_busy(only_connection):
    with (
        only_connection.begin(write=False),
        pytest.raises(StorageBusy, match="Other threads are using all connections"),
    ):
        rows(only_connection, "SELECT 1")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, StorageBusy])
@pytest.mark.parametrize("how", [{}, {"write": False}, {"single": True}], ids=str)
def test_failed_block_gives_its_connection_back_to_the_pool(only_connection, error, how):
    with pytest.raises(error), only_connection.begin(**how):
        raise error

    assert rows(only_connection, "SELECT 1") == [(1,)]


def test_block_that_cannot_begin_gives_its_connection_back_to_the_pool(only_connection):
    def interrupt():
        raise KeyboardInterrupt

    only_connection.clock = interrupt
    with pytest.raises(KeyboardInterrupt), only_connection.begin():
        pytest.fail("The block has begun.")

    only_connection.clock = None
    assert rows(only_connection, "SELECT 1") == [(1,)]


def test_block_that_is_entered_again_does_not_get_the_connection_of_another_block(only_connection):
    block = only_connection.begin()
    with block as txn:
        txn.raw("SELECT 1")

    with only_connection.begin() as txn:
        txn.raw("CREATE TABLE mine (place integer)")
        with pytest.raises(StorageBusy), block:
            pytest.fail("The block has begun.")
        assert txn.raw("SELECT * FROM mine")[1] == []


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_connection_in_use_at_close_is_closed_at_the_end_of_its_block(only_connection, error):
    with suppress(RuntimeError), only_connection.begin() as txn:
        used = txn._cursor.connection
        only_connection.close()
        txn.raw("SELECT 1")
        if error:
            raise error

    with pytest.raises((psycopg.OperationalError, sqlite3.ProgrammingError)):
        used.cursor().execute("SELECT 1")
    assert rows(only_connection, "SELECT 1") == [(1,)]  # over a new connection


def test_connection_whose_session_cannot_be_set_up_is_closed(postgres_url, opened, monkeypatch):
    database = opened(postgres_url)
    database.close()
    monkeypatch.setattr(sessions, "set_for_session", lambda *_: "SELECT 1/0")
    sessions_open = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'studydb'"
    )
    with closing(postgres.connect(postgres_url)) as watcher:
        with pytest.raises(psycopg.errors.DivisionByZero) as caught:
            rows(database, "SELECT 1")

        assert caught.traceback  # its frames refer to the connection
        deadline = time.monotonic() + 10
        while watcher.execute(sessions_open).fetchone() != (0,):
            assert time.monotonic() < deadline, "The connection is still open."


def test_forked_process_does_not_close_the_connection_of_its_parents_block(only_connection):
    with only_connection.begin() as txn:
        txn.raw("SELECT 1")
        pid = os.fork()
        if pid == 0:
            only_connection.connections.discard(txn._cursor)
            os._exit(0)
        os.waitpid(pid, 0)

        assert txn.raw("SELECT 1")[1] == [(1,)]


def test_forked_process_does_not_use_connections_of_its_parent(database):
    study = new_study(database)

    pid = os.fork()
    if pid == 0:
        os._exit(0 if rows(database, "SELECT name FROM study") == [(study.name,)] else 1)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert rows(database, "SELECT name FROM study") == [(study.name,)]
