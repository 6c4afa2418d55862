"""
One PostgreSQL database that many tests of a process use, one after the other.

To make a database, connect to it, and plan the statements of a study takes 100 ms of CPU, most of
it in the server; to delete the rows of the last test takes 5 ms. Only tests that start no process
use a kept database: a worker that outlives its test could run the trials of the next test.
"""

from contextlib import ExitStack
from typing import Any

import psycopg

from harness import postgres
from studydb.db import Database, connect
from studydb.db.metadata import METADATA

MOST_TESTS = 100
"""Then the database is replaced, because deleted rows slow the statements down."""

_CATALOGS = (
    *("pg_class", "pg_attribute", "pg_attrdef", "pg_constraint", "pg_trigger", "pg_proc"),
    *("pg_namespace", "pg_statistic", "pg_db_role_setting"),
)
_SCHEMA = " UNION ALL ".join(
    f"SELECT '{name}', count(*), max(xmin::text::bigint) FROM {name}" for name in _CATALOGS
)
"""What a change of the schema, of rights, of settings or of the planner's statistics changes."""

_OTHER_SESSIONS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL (%s)
"""
_OWN_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
_SEQUENCES = "SELECT relname FROM pg_class WHERE relkind = 'S'"


class KeptDatabase:
    """
    A database with the newest schema, and the pool of connections that the tests share.

    Args:
        server_url: The server's URL.
        template: A database with the newest schema, to copy.
        administration: The connection that creates and drops databases.
    """

    def __init__(
        self, server_url: str, template: str, administration: psycopg.Connection[Any]
    ) -> None:
        self._made_from = (server_url, template, administration)
        self._stack = ExitStack()
        self._n_tests = MOST_TESTS

    def url(self) -> str:
        """Return the URL of the database, without rows; no other session is connected to it."""
        if self._n_tests >= MOST_TESTS or not self._emptied():
            self._replace()
        self._n_tests += 1
        return self._url

    def opened(self) -> Database:
        """Return the database itself, with the attributes of a new one."""
        vars(self._database).update(self._attributes)
        return self._database

    def close(self) -> None:
        self._stack.close()

    def _replace(self) -> None:
        self._stack.close()
        server_url, template, administration = self._made_from
        self._url = self._stack.enter_context(
            postgres.temporary_database(server_url, template=template, connection=administration)
        )
        self._session = self._stack.enter_context(postgres.connect(self._url))
        self._connect()
        self._stack.callback(self._disconnect)
        self._schema = self._session.execute(_SCHEMA).fetchall()
        sequences = [name for (name,) in self._session.execute(_SEQUENCES).fetchall()]
        self._empty = ";".join(
            (
                "SET session_replication_role = replica",  # tables refer to each other in circles
                *(f"DELETE FROM {name}" for name in METADATA.tables),
                *(f"SELECT setval('{name}', 1, false)" for name in sequences),
            )
        )
        self._n_tests = 0

    def _connect(self) -> None:
        self._database = connect(self._url)
        self._attributes = dict(vars(self._database))

    def _disconnect(self) -> None:
        self._database.close()

    def _emptied(self) -> bool:
        """Delete all rows; return False if the last test has changed more than rows."""
        pool = self._attributes["connections"]
        sessions = [cursor.connection.info.backend_pid for cursor in pool._free]
        self._session.execute(_OTHER_SESSIONS, [sessions])
        found = self._session.execute(_OWN_SESSIONS, [sessions]).fetchone()
        if pool._in_use or found != (len(sessions),):
            self._disconnect()
            self._connect()
        self._session.execute(self._empty)
        return self._session.execute(_SCHEMA).fetchall() == self._schema
