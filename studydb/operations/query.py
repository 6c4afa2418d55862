"""Run a person's query, which may only read."""

import re
from typing import Any

from studydb.db import Database, faults
from studydb.domain.errors import StorageTransient, UsageError

READING_VERBS = ("SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN")
"""The words with which a query may begin."""

_SPACE = re.compile(r"[\s(]+|--[^\r\n]*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")


def _verb(sql: str) -> str:
    """
    Find the first word after comments and parentheses; return it in capitals.

    If there is no word, the result is the next character, or empty at the end of the text.

    The result is empty if a comment does not end, or contains the beginning of another comment.
    PostgreSQL nests comments and SQLite does not, so the databases would disagree about where the
    statement begins.
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
    Run a person's query on a database that was opened read-only.

    The text must be one statement. On PostgreSQL it is run in a READ ONLY transaction, which a
    second statement could end.

    Returns:
        The names of the columns, and the rows.

    Raises:
        UsageError: The first word is not a reading verb, or the database refuses the statement.
        StorageTransient: A fault that will pass, for example that the database did not answer.
    """
    verb = _verb(sql)
    if verb not in READING_VERBS:
        found = f", not {verb[:40]!r}" if verb else "; close comments before it, and nest none"
        raise UsageError(
            "`studydb query` only reads: give one statement that begins with "
            f"{', '.join(READING_VERBS[:-1])} or {READING_VERBS[-1]}{found}."
        )
    with database.begin(write=False) as txn:
        try:
            return txn.single(sql)
        except Exception as error:
            if _is_transient(error, database):
                raise
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UsageError(f"The database refuses the query: {cause.rstrip('.')}.") from error


def _is_transient(error: Exception, database: Database) -> bool:
    translated = faults.translate(error, url=database.url)
    # PostgreSQL raises the same error for a write in a READ ONLY transaction and for a write on a
    # standby. `faults` counts this error as transient, because a standby may accept writes later.
    # For a person's query, a retry never helps.
    return isinstance(translated, StorageTransient) and "read-only" not in str(error)
