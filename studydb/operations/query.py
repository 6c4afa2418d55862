"""Run a person's own SELECT, read-only."""

import re
from typing import Any

from studydb.db import Database, faults
from studydb.domain.errors import StorageTransient, UsageError

READING = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN")
"""What a query may begin with."""

_SPACE = re.compile(r"[\s(]+|--[^\r\n]*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def _verb(sql: str) -> str:
    """
    The first word of a statement, in capitals; comments and parentheses may come before it.

    PostgreSQL nests comments and SQLite does not, so that one within another hides the verb from
    one of the two: then there is none.
    """
    rest = sql
    while True:
        if space := _SPACE.match(rest):
            rest = rest[space.end() :]
        elif rest.startswith("/*"):
            edge = _COMMENT_EDGE.search(rest, 2)
            if edge is None or edge[0] == "/*":
                return ""
            rest = rest[edge.end() :]
        else:
            break
    word = re.match(r"\w*", rest)
    return word[0].upper() if word and word[0] else rest[:1]


def run_query(database: Database, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """
    Run a person's own SELECT on a database that was opened read-only: names and rows.

    It is one statement that reads, in a READ ONLY transaction: a second one could end that and
    begin another.

    Raises:
        UsageError: It is another kind of statement, or the database refuses the text, in its own
            words: a slip, or it would write.
    """
    verb = _verb(sql)
    if verb not in READING:
        raise UsageError(
            f"`studydb query` only reads: give one statement that begins with {', '.join(READING)}"
            f", not {verb[:40]!r}."
        )
    with database.begin(write=False) as txn:
        try:
            return txn.single(sql)
        except Exception as error:
            if _is_passing(error, database):
                raise
            words = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UsageError(f"The database refuses the query: {words.rstrip('.')}.") from error


def _is_passing(error: Exception, database: Database) -> bool:
    """Whether a fault has nothing to do with the query; to write is refused, not put off."""
    translated = faults.translate(error, url=database.url)
    return isinstance(translated, StorageTransient) and "read-only" not in str(error)
