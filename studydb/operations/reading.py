"""What people look at: trials, workers, counts; without locks."""

import re
from dataclasses import dataclass
from typing import Any

from studydb.db import Database, faults
from studydb.domain.errors import NoResults, StorageTransient, UnknownTrial, UsageError
from studydb.domain.life.states import State
from studydb.domain.records import Study, TrialRow, Worker
from studydb.store import attempts, rungs, studies, trials, workers


@dataclass(frozen=True, slots=True)
class Details:
    """A trial with its attempts and how it was judged, as rows."""

    trial: TrialRow
    attempts: list[Any]
    entries: list[Any]


def study_names(database: Database) -> list[str]:
    """Every study's name, oldest first."""
    with database.begin(write=False) as txn:
        return studies.names(txn)


def list_trials(
    database: Database,
    study: Study,
    *,
    state: State | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[TrialRow]:
    """Trials by number."""
    with database.begin(write=False) as txn:
        return trials.listing(txn, study_id=study.id, state=state, limit=limit, offset=offset)


def best_trials(database: Database, study: Study, *, most: int = 1) -> list[TrialRow]:
    """
    The best trials by `best_value`, best first.

    Raises:
        NoResults: No trial has a value that is not NaN.
    """
    with database.begin(write=False) as txn:
        found = trials.best(txn, study_id=study.id, objective=study.objective, most=most)
    if not found:
        raise NoResults(
            f"No trial of study {study.name!r} has reported {study.objective.metric!r} yet. "
            f"`studydb status {study.name}` shows what it is doing."
        )
    return found


def details(database: Database, study: Study, number: int) -> Details:
    """
    One trial with its attempts and rung entries.

    Raises:
        UnknownTrial: No such number.
    """
    with database.begin(write=False) as txn:
        trial = trials.find(txn, study_id=study.id, number=number)
        if trial is None:
            raise UnknownTrial(f"Study {study.name!r} has no trial {number}.")
        return Details(
            trial=trial,
            attempts=attempts.of_trial(txn, trial_id=trial.id),
            entries=rungs.entries_of(txn, study_id=study.id, trial_id=trial.id),
        )


def list_workers(database: Database, study: Study, *, most: int = 100) -> list[Worker]:
    """A study's workers, newest first."""
    with database.begin(write=False) as txn:
        return workers.of_study(txn, study_id=study.id, most=most)


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


def query(database: Database, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
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
