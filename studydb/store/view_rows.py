"""Read rows of the stable views, errors, and pages of results, for people and data frames."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import attempt, result, trial, worker
from studydb.db.schema import study as study_table
from studydb.db.types import Json, Number, Texts, UtcDateTime
from studydb.domain.life.states import State
from studydb.domain.listed_rows import (
    ListedAttempt,
    ListedStudy,
    ListedTrial,
    ListedWorker,
    PagedResult,
    Tags,
)
from studydb.domain.records import Process
from studydb.store import ranking, tags
from studydb.store.results import IS_LIVE
from studydb.store.workers import process_of

_TYPES: dict[Any, sa.types.TypeEngine[Any]] = {
    int: sa.BigInteger(),
    str: sa.Text(),
    float: Number(),
    datetime: UtcDateTime(),
    Mapping[str, Any]: Json(),
    Tags: Texts(),
}


def view(name: str, row: type) -> sa.TableClause:
    """Declare a view whose columns are the fields of the class `row`."""
    hints = {
        column: get_args(hint)[0] if isinstance(hint, UnionType) else hint
        for column, hint in get_type_hints(row).items()
    }
    return sa.table(name, *(sa.column(column, _TYPES[hint]) for column, hint in hints.items()))


STUDY = view("v_study", ListedStudy)
TRIAL = view("v_trial", ListedTrial)
ATTEMPT = view("v_attempt", ListedAttempt)
WORKER = view("v_worker", ListedWorker)

_NAME_OF_STUDY = (
    sa.select(study_table.c.name).where(study_table.c.id == sa.bindparam("study")).scalar_subquery()
)
"""The name of a study now: a person may have renamed the study since the caller read its row."""

_STUDIES = Prepared(sa.select(STUDY).order_by(STUDY.c.created_at, STUDY.c.study))
_STUDY = Prepared(sa.select(STUDY).where(STUDY.c.study == _NAME_OF_STUDY))

_TRIAL_PAGE = Prepared(
    sa.select(TRIAL)
    .where(
        TRIAL.c.study == _NAME_OF_STUDY,
        TRIAL.c.number >= sa.bindparam("first", type_=sa.BigInteger),
        TRIAL.c.number < sa.bindparam("end", type_=sa.BigInteger),
    )
    .order_by(TRIAL.c.number)
)
_NEXT_NUMBER = Prepared(
    sa.select((sa.func.coalesce(sa.func.max(trial.c.number), -1) + 1).label("number")).where(
        trial.c.study_id == sa.bindparam("study")
    )
)
_TRIALS = sa.select(TRIAL).where(TRIAL.c.study == _NAME_OF_STUDY).order_by(TRIAL.c.number)

_LISTED = Prepared(
    sa.select(TRIAL)
    .where(TRIAL.c.study == _NAME_OF_STUDY, is_listed(TRIAL.c.number, "numbers"))
    .order_by(TRIAL.c.number)
)
MOST_LISTED = 5_000
"""The most trials that one statement looks up by their numbers."""

_POSITION = (result.c.trial_id, result.c.attempt, result.c.step)
_AFTER = [
    sa.bindparam(name, type_=sa.BigInteger)
    for name in ("after_trial", "after_attempt", "after_step")
]
_RESULT_PAGE = Prepared(
    sa.select(
        trial.c.number,
        result.c.step,
        result.c.value,
        result.c.metrics,
        result.c.attempt,
        result.c.reported_at,
        result.c.trial_id,
        trial.c.invalidated_at,
    )
    .join(attempt, IS_LIVE)
    .join(trial, trial.c.id == result.c.trial_id)
    .where(
        result.c.study_id == sa.bindparam("study"),
        sa.tuple_(*_POSITION) > sa.tuple_(*_AFTER),
        # The next two conditions follow from the condition above. Without them a merge join
        # would read `attempt` and `trial` from their first rows.
        attempt.c.trial_id >= sa.bindparam("after_trial", type_=sa.BigInteger),
        trial.c.id >= sa.bindparam("after_trial", type_=sa.BigInteger),
    )
    .order_by(*_POSITION)
    .limit(sa.bindparam("limit"))
)

_ATTEMPTS = Prepared(
    sa.select(ATTEMPT)
    .where(
        ATTEMPT.c.study == _NAME_OF_STUDY,
        ATTEMPT.c.number == sa.bindparam("trial_no", type_=sa.BigInteger),
    )
    .order_by(ATTEMPT.c.attempt)
)

_in_error = (trial.c.study_id == sa.bindparam("study"), trial.c.state == State.ERROR)
_errors = (
    sa.select(trial.c.number, trial.c.reason, attempt.c.error_type, attempt.c.error_message)
    .outerjoin(
        attempt, sa.and_(attempt.c.trial_id == trial.c.id, attempt.c.attempt == trial.c.attempt)
    )
    .where(*_in_error)
    .order_by(trial.c.number)
)
_ERRORS = Prepared(_errors)
_ERROR_OF = Prepared(_errors.where(trial.c.number == sa.bindparam("number")))
_ERROR_NUMBERS = Prepared(sa.select(trial.c.number).where(*_in_error).order_by(trial.c.number))

_WORKERS = (
    sa.select(WORKER, worker.c.lease_s, worker.c.boot_id, worker.c.pid_namespace, worker.c.started)
    .join(worker, worker.c.uuid == WORKER.c.worker)
    .order_by(worker.c.id.desc())
    .limit(sa.bindparam("limit"))
)
_ALL_WORKERS = Prepared(_WORKERS)
_WORKERS_OF_STUDY = Prepared(_WORKERS.where(worker.c.study_id == sa.bindparam("study")))


class TrialError(NamedTuple):
    """
    Why a trial is in ERROR.

    Attributes:
        type, message: The type and message of the exception that ended the trial's last attempt.
            If the attempt ended without an exception, the type is a word such as "Lost", and the
            message says how. Both are None if the cause is not known, as after a worker's death.
    """

    number: int
    reason: str
    type: str | None
    message: str | None


def errors(txn: Txn, *, study_id: int, number: int | None = None) -> list[TrialError]:
    """
    Read why trials, including invalidated trials, are in ERROR; ordered by number.

    Args:
        number: The only trial to read; None for all.
    """
    if number is None:
        return [TrialError._make(row) for row in txn.all(_ERRORS, study=study_id)]
    return [TrialError._make(row) for row in txn.all(_ERROR_OF, study=study_id, number=number)]


def error_numbers(txn: Txn, *, study_id: int) -> list[int]:
    """Read the numbers of the trials in ERROR, ascending."""
    return [number for (number,) in txn.all(_ERROR_NUMBERS, study=study_id)]


def studies(txn: Txn) -> list[ListedStudy]:
    """Read all rows of `v_study`, oldest first."""
    return [ListedStudy._make(row) for row in txn.all(_STUDIES)]


def study(txn: Txn, *, study_id: int) -> ListedStudy | None:
    """Find the study's row of `v_study`."""
    row = txn.first(_STUDY, study=study_id)
    return None if row is None else ListedStudy._make(row)


def trials(
    txn: Txn,
    *,
    study_id: int,
    state: State | None = None,
    tag: str | None = None,
    limit: int | None = None,
) -> list[ListedTrial]:
    """Read the rows of `v_trial` of one study, ordered by number."""
    query = _TRIALS
    params: dict[str, Any] = {"study": study_id}
    if tag is not None:
        query = query.where(tags.is_tagged(TRIAL.c.number))
        params["of_tag"] = tag
    if state is not None:
        query = query.where(TRIAL.c.state == sa.bindparam("of_state", type_=sa.Text))
        params["of_state"] = state
    if limit is not None:
        query = query.limit(limit)
    return [ListedTrial._make(row) for row in txn.all(query, **params)]


def best_trials(
    txn: Txn,
    *,
    study_id: int,
    state: State | None = None,
    tag: str | None = None,
    limit: int | None = None,
) -> list[ListedTrial]:
    """Read rows of `v_trial` of one study, best first; then trials without a rank, by number."""
    numbers = ranking.numbers(txn, study_id=study_id, state=state, tag=tag, limit=limit)
    found = {row.number: row for row in trials_numbered(txn, study_id=study_id, numbers=numbers)}
    return [found[number] for number in numbers if number in found]


def trials_numbered(txn: Txn, *, study_id: int, numbers: Sequence[int]) -> list[ListedTrial]:
    """Read the rows of `v_trial` with these numbers, in no particular order."""
    parts = (numbers[first : first + MOST_LISTED] for first in range(0, len(numbers), MOST_LISTED))
    return [
        ListedTrial._make(row)
        for part in parts
        for row in txn.all(_LISTED, study=study_id, numbers=list(part))
    ]


def trial_page(txn: Txn, *, study_id: int, first: int, end: int) -> list[ListedTrial]:
    """Read the rows of `v_trial` of one study with the numbers `first` to `end - 1`."""
    rows = txn.all(_TRIAL_PAGE, study=study_id, first=first, end=end)
    return [ListedTrial._make(row) for row in rows]


def next_number(txn: Txn, *, study_id: int) -> int:
    """Return 1 more than the highest number of the study's trials; 0 if the study has none."""
    return int(txn.all(_NEXT_NUMBER, study=study_id)[0].number)


def result_page(
    txn: Txn, *, study_id: int, after: tuple[int, int, int], limit: int
) -> list[PagedResult]:
    """
    Read live results after a position, in the order of the primary key: trial, attempt, step.

    The view `v_result` is not used, because it adds the study's metric to each row's JSON.
    Removing the metric again would take longer than all other work.

    Args:
        after: `trial_id`, `attempt` and `step` of the last row read; (0, 0, 0) for the first page.
    """
    trial_id, attempt_no, step = after
    rows = txn.all(
        _RESULT_PAGE,
        study=study_id,
        after_trial=trial_id,
        after_attempt=attempt_no,
        after_step=step,
        limit=limit,
    )
    return [PagedResult._make(row) for row in rows]


def attempts(txn: Txn, *, study_id: int, number: int) -> list[ListedAttempt]:
    """Read the rows of `v_attempt` of one trial, oldest first."""
    rows = txn.all(_ATTEMPTS, study=study_id, trial_no=number)
    return [ListedAttempt._make(row) for row in rows]


def workers(
    txn: Txn, *, study_id: int | None = None, limit: int
) -> list[tuple[ListedWorker, float, Process]]:
    """Read rows of `v_worker`, newest first, each with the worker's `lease_s` and process."""
    if study_id is None:
        rows = txn.all(_ALL_WORKERS, limit=limit)
    else:
        rows = txn.all(_WORKERS_OF_STUDY, study=study_id, limit=limit)
    width = len(ListedWorker._fields)
    return [(ListedWorker._make(islice(row, width)), row.lease_s, process_of(row)) for row in rows]
