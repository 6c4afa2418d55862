"""
One PostgreSQL database that many tests of a process use, one after the other.

Making a database, connecting to it, and planning the statements of a study take 100 ms of CPU, most
of it in the server. Deleting the rows of the last test takes 5 ms. A test that uses a kept database
must end the processes that it starts: a worker that outlives its test could run trials of the next
test.
"""

from contextlib import ExitStack
from typing import Any

import psycopg

from harness import postgres
from harness.arrange import delete_all_rows
from studydb.db import Database, connect
from studydb.domain.errors import StudydbError

MOST_TESTS = 100
"""The database is replaced after this many tests, because deleted rows slow statements down."""

_CATALOGS = (
    *("pg_class", "pg_attribute", "pg_attrdef", "pg_constraint", "pg_trigger", "pg_proc"),
    *("pg_namespace", "pg_statistic", "pg_db_role_setting"),
)
_SCHEMA = " UNION ALL ".join(
    f"SELECT '{name}', count(*), max(xmin::text::bigint) FROM {name}"
    for name in (*_CATALOGS, "studydb_version")
)
"""The query's rows change with the schema, the rights, the settings or the planner's statistics."""

_END_OTHER_SESSIONS = """
    SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL (%s)
"""
_LIVING = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
_RESET_SEQUENCES = "SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"


class KeptDatabase:
    """
    A database with the newest schema, and a pool of connections to it, which tests share.

    The database is replaced if a test has changed anything but rows, or if a connection of the pool
    is lost or still in use. Settings that a test makes in a session of the pool stay for later
    tests.

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
        """Return the URL of the database, which has no rows; sessions of earlier tests are ended."""
        if self._n_tests >= MOST_TESTS or not self._emptied():
            self._replace()
        self._n_tests += 1
        return self._url

    def opened(self) -> Database:
        """Return the database, after giving it the attributes of a new `Database`."""
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
        self._session = postgres.connect(self._url)
        self._stack.callback(self._session.close)
        self._database = connect(self._url)
        self._stack.callback(self._database.close)
        self._attributes = dict(vars(self._database))
        self._schema = self._session.execute(_SCHEMA).fetchall()
        self._n_tests = 0

    def _emptied(self) -> bool:
        """Delete all rows; return False if the database must be replaced."""
        try:
            pool = self.opened().connections
            sessions = [cursor.connection.info.backend_pid for cursor in pool._free]
            self._session.execute(_END_OTHER_SESSIONS, [sessions])
            living = self._session.execute(_LIVING, [sessions]).fetchone()
            if pool._in_use or living != (len(sessions),):
                return False
            if self._session.execute(_SCHEMA).fetchall() != self._schema:
                return False
            delete_all_rows(self._database)
            self._session.execute(_RESET_SEQUENCES)
        except (psycopg.Error, StudydbError):
            return False
        return True
