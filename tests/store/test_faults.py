"""What a driver's error means, and what becomes of the connection that raised it."""

import os
import sqlite3
from contextlib import suppress

import psycopg
import pytest
import sqlalchemy.exc
from arrange import change, dump, new_study, rows, token

from studydb.db import connect, engine
from studydb.db.faults import Duplicate, is_disconnect, translate
from studydb.domain.errors import (
    StorageBusy,
    StorageError,
    StorageMissing,
    StorageReadOnly,
    StorageUnreachable,
)
from studydb.store import events

BUSY = ["40001", "40P01", "55P03", "53300", "25006", "57014"]
GONE = ["57P01", "57P02", "57P03", "57P05", "25P03", "08000", "08003", "08006", "08P01"]
OTHER = ["53100", "53200", "57P04", "58030", "42501", "28P01", "28000"]


def postgresql_error(code):
    return psycopg.errors.lookup(code)("what happened\nin detail")


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        *((code, StorageBusy) for code in BUSY),
        *((code, StorageUnreachable) for code in GONE),
        *((code, StorageError) for code in OTHER),
        ("42P01", StorageMissing),
        ("23505", Duplicate),
    ],
)
def test_sqlstate_has_a_meaning(code, meaning):
    found = translate(postgresql_error(code), url="the database")

    assert type(found) is meaning
    assert "in detail" not in str(found)


@pytest.mark.parametrize("code", ["42601", "23514", "22012", "42703"])
def test_bug_of_ours_stays_what_it_is(code):
    assert translate(postgresql_error(code), url="the database") is None


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), StorageUnreachable),
        (psycopg.InterfaceError("the connection is closed"), StorageUnreachable),
        (sqlalchemy.exc.TimeoutError(), StorageBusy),
        (psycopg.OperationalError('database "x" does not exist'), StorageMissing),
        (psycopg.OperationalError('password authentication failed for user "x"'), StorageError),
    ],
)
def test_fault_without_sqlstate_has_a_meaning(error, meaning):
    assert type(translate(error, url="the database")) is meaning


@pytest.mark.parametrize("code", [*GONE, "25006"])
def test_connection_is_given_up_when_it_is_of_no_more_use(code):
    assert is_disconnect(postgresql_error(code))


@pytest.mark.parametrize("code", [*BUSY[:4], "57014", "23505", "42P01"])
def test_connection_is_kept_when_only_the_statement_failed(code):
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
        (sqlite3.SQLITE_FULL, StorageError),
        (sqlite3.SQLITE_IOERR_WRITE, StorageError),
        (sqlite3.SQLITE_NOTADB, StorageError),
        (sqlite3.SQLITE_CORRUPT, StorageError),
    ],
)
def test_sqlite_code_has_a_meaning(code, meaning):
    assert type(translate(sqlite_error(code), url="the file")) is meaning


def test_other_sqlite_errors_are_bugs_of_ours():
    assert translate(sqlite_error(sqlite3.SQLITE_ERROR, "near x"), url="the file") is None
    assert type(translate(sqlite3.OperationalError("no such table: x"), url="")) is StorageMissing


# --- with a database


def test_block_that_raises_changes_nothing(database):
    new_study(database)
    before = dump(database)

    with pytest.raises(RuntimeError), database.begin() as txn:
        txn.raw("DELETE FROM event")
        raise RuntimeError

    assert dump(database) == before


def test_abandoned_block_changes_nothing(database):
    new_study(database)
    before = dump(database)

    with database.begin() as txn:
        txn.raw("DELETE FROM event")
        txn.abandon()

    assert dump(database) == before


def test_reader_changes_nothing(database):
    new_study(database)
    before = dump(database)

    with suppress(StorageError), database.begin(write=False) as txn:
        txn.raw("DELETE FROM event")

    assert dump(database) == before


def test_interrupt_leaves_no_transaction_open(database):
    new_study(database)

    with pytest.raises(KeyboardInterrupt), database.begin() as txn:
        txn.raw("DELETE FROM event")
        raise KeyboardInterrupt

    change(database, "UPDATE study SET name = 'still here'")
    assert rows(database, "SELECT count(*) FROM event") == [(1,)]


def test_duplicate_that_is_known_at_the_commit_alone_is_told(database):
    study = new_study(database)
    event = f"INSERT INTO event (study_id, kind, actor, token, at) VALUES ({study.id}, 'k', 'a', '{{}}', '2026-01-01')"

    with database.begin() as txn:
        txn.raw(event.format("once"))
    with pytest.raises(Duplicate), database.begin() as txn:
        txn.raw(event.format("once"))
        txn.raw(event.format(token()))

    assert rows(database, "SELECT token FROM event WHERE kind = 'k'") == [("once",)]


def test_statement_that_lacks_a_value_is_refused_before_it_is_sent(database):
    with pytest.raises(TypeError, match="lacks actor, "), database.begin() as txn:
        txn.run(events._APPEND, study_id=1)


def test_killed_connection_is_a_fault_that_passes(postgres_url):
    database, killer = connect(postgres_url), connect(postgres_url)
    new_study(database)

    with pytest.raises(StorageUnreachable), database.begin() as txn:
        (row,) = txn.all(PID)
        change(killer, f"SELECT pg_terminate_backend({row.pid})")
        txn.raw("DELETE FROM event")

    assert rows(database, "SELECT count(*) FROM event") == [(1,)]
    database.close()
    killer.close()


PID = sqlalchemy.select(sqlalchemy.func.pg_backend_pid().label("pid"))


def test_frozen_client_does_not_hold_its_rows_for_ever(postgres_url, monkeypatch):
    monkeypatch.setitem(engine._TIMEOUTS_MS, "idle_in_transaction_session_timeout", 100)
    frozen, other = connect(postgres_url), connect(postgres_url)
    new_study(other)

    with pytest.raises(StorageUnreachable), frozen.begin() as txn:
        txn.all(PID)
        txn.raw("UPDATE study SET name = 'mine'")
        change(other, "UPDATE study SET name = 'theirs'")  # waits until the server ends the other
        txn.all(PID)

    assert rows(other, "SELECT name FROM study") == [("theirs",)]
    frozen.close()
    other.close()


@pytest.mark.parametrize("pooler", ["", "pooler=transaction"])
def test_timeouts_are_set_in_every_transaction(postgres_url, pooler):
    database = connect(f"{postgres_url}{'&' if '?' in postgres_url else '?'}{pooler}")

    found = rows(
        database,
        "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "
        "current_setting('idle_in_transaction_session_timeout'), "
        "current_setting('transaction_isolation')",
    )

    assert found == [("10s", "1min", "10s", "read committed")]
    database.close()


def test_pooler_is_given_no_prepared_statements(postgres_url):
    database = connect(f"{postgres_url}{'&' if '?' in postgres_url else '?'}pooler=transaction")
    for _ in range(7):
        new_study(database)

    assert rows(database, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    database.close()


def test_lock_that_is_not_had_in_time_is_a_fault_that_passes(postgres_url, monkeypatch):
    monkeypatch.setitem(engine._TIMEOUTS_MS, "lock_timeout", 50)
    holder, waiter = connect(postgres_url), connect(postgres_url)
    new_study(holder)

    with holder.begin() as txn:
        txn.raw("UPDATE study SET name = 'mine'")
        txn.all(PID)
        with pytest.raises(StorageBusy, match="lock timeout"):
            change(waiter, "UPDATE study SET name = 'theirs'")
    holder.close()
    waiter.close()


def test_writers_of_sqlite_take_turns_and_readers_do_not_wait(sqlite_url, monkeypatch):
    monkeypatch.setattr(engine, "SQLITE_BUSY_TIMEOUT_S", 0)
    first, second = connect(sqlite_url), connect(sqlite_url)
    new_study(first, name="before")

    with first.begin() as txn:
        txn.raw("UPDATE study SET name = 'after'")
        seen = rows(second, "SELECT name FROM study")
        with pytest.raises(StorageBusy, match="another process is writing"), second.begin():
            pass

    assert seen == [("before",)]
    assert rows(second, "SELECT name FROM study") == [("after",)]
    first.close()
    second.close()


def test_pool_that_is_empty_is_a_fault_that_passes(storage_url, monkeypatch):
    monkeypatch.setattr(engine, "POOL_TIMEOUT_S", 0.05)
    database = connect(storage_url, connections=1)

    with (
        database.begin(write=False),
        pytest.raises(StorageBusy, match="connections of this process"),
    ):
        rows(database, "SELECT 1")
    database.close()


def test_fork_uses_none_of_its_parents_connections(database):
    study = new_study(database)

    pid = os.fork()
    if pid == 0:
        os._exit(0 if rows(database, "SELECT name FROM study") == [(study.name,)] else 1)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert rows(database, "SELECT name FROM study") == [(study.name,)]
