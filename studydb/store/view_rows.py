"""The stable views as tables, for those who read what people read: the command line and frames."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import attempt, result, trial, worker
from studydb.db.types import Json, Number, UtcDateTime
from studydb.domain.life.states import State
from studydb.store.results import IS_LIVE

_Int = sa.BigInteger()
_Text = sa.Text()
_Seconds: sa.Double[float] = sa.Double()


def _view(name: str, **columns: Any) -> sa.TableClause:
    return sa.table(name, *(sa.column(column, kind) for column, kind in columns.items()))


STUDY = _view(
    "v_study",
    study=_Text,
    status=_Text,
    metric=_Text,
    mode=_Text,
    num_trials=_Int,
    max_concurrent=_Int,
    pending=_Int,
    running=_Int,
    paused=_Int,
    terminated=_Int,
    error=_Int,
    created_at=UtcDateTime(),
)

TRIAL = _view(
    "v_trial",
    study=_Text,
    number=_Int,
    state=_Text,
    reason=_Text,
    params=Json(),
    value=Number(),
    best_value=Number(),
    best_step=_Int,
    last_step=_Int,
    attempt=_Int,
    failures=_Int,
    losses=_Int,
    started_at=UtcDateTime(),
    ended_at=UtcDateTime(),
    duration_s=_Seconds,
)

RESULT = _view(
    "v_result",
    study=_Text,
    number=_Int,
    step=_Int,
    value=Number(),
    metrics=Json(),
    attempt=_Int,
    reported_at=UtcDateTime(),
)

ATTEMPT = _view(
    "v_attempt",
    study=_Text,
    number=_Int,
    attempt=_Int,
    reason=_Text,
    start_step=_Int,
    host=_Text,
    pid=_Int,
    worker=_Text,
    started_at=UtcDateTime(),
    ended_at=UtcDateTime(),
    duration_s=_Seconds,
    error_type=_Text,
    error_message=_Text,
    start=_Text,
    start_s=_Seconds,
)

WORKER = _view(
    "v_worker",
    worker=_Text,
    study=_Text,
    host=_Text,
    pid=_Int,
    slots=_Int,
    running=_Int,
    request=_Text,
    version=_Text,
    started_at=UtcDateTime(),
    seen_at=UtcDateTime(),
    ended_at=UtcDateTime(),
)
_OF_STUDY = sa.bindparam("study_name", type_=_Text)
_ONE = sa.bindparam("no", type_=_Int)

_STUDIES = Prepared(sa.select(STUDY).order_by(STUDY.c.created_at, STUDY.c.study))
_STUDY = Prepared(sa.select(STUDY).where(STUDY.c.study == _OF_STUDY))

_TRIAL_PAGE = Prepared(
    sa.select(TRIAL)
    .where(
        TRIAL.c.study == _OF_STUDY,
        TRIAL.c.number >= sa.bindparam("first", type_=_Int),
        TRIAL.c.number < sa.bindparam("beyond", type_=_Int),
    )
    .order_by(TRIAL.c.number)
)
_BEYOND = Prepared(
    sa.select((sa.func.coalesce(sa.func.max(trial.c.number), -1) + 1).label("beyond")).where(
        trial.c.study_id == sa.bindparam("study")
    )
)
_RANKED = (
    sa.select(TRIAL)
    .join(trial, trial.c.number == TRIAL.c.number)
    .where(TRIAL.c.study == _OF_STUDY, trial.c.study_id == sa.bindparam("study"))
    .order_by(trial.c.best_score.is_(None), trial.c.best_score, trial.c.number)
)
_BY_NUMBER = sa.select(TRIAL).where(TRIAL.c.study == _OF_STUDY).order_by(TRIAL.c.number)

_LISTED = Prepared(
    sa.select(TRIAL)
    .where(TRIAL.c.study == _OF_STUDY, is_listed(TRIAL.c.number, "numbers"))
    .order_by(TRIAL.c.number)
)

_PLACE = (result.c.trial_id, result.c.attempt, result.c.step)
_AFTER = [sa.bindparam(name, type_=_Int) for name in ("after_trial", "after_attempt", "after_step")]
_RESULT_PAGE = Prepared(
    sa.select(
        trial.c.number,
        result.c.step,
        result.c.value,
        result.c.metrics,
        result.c.attempt,
        result.c.reported_at,
        result.c.trial_id,
    )
    .join(attempt, IS_LIVE)
    .join(trial, trial.c.id == result.c.trial_id)
    .where(
        result.c.study_id == sa.bindparam("study"),
        sa.tuple_(*_PLACE) > sa.tuple_(*_AFTER),
        attempt.c.trial_id >= sa.bindparam("after_trial", type_=_Int),  # follows; a merge join
        trial.c.id >= sa.bindparam("after_trial", type_=_Int),  # would begin at the first row
    )
    .order_by(*_PLACE)
    .limit(sa.bindparam("most"))
)

_ATTEMPTS = Prepared(
    sa.select(ATTEMPT)
    .where(ATTEMPT.c.study == _OF_STUDY, ATTEMPT.c.number == _ONE)
    .order_by(ATTEMPT.c.attempt)
)

_WORKERS = (
    sa.select(
        WORKER,
        worker.c.lease_s,
        worker.c.boot_id,
        worker.c.pid_namespace,
        worker.c.started,
    )
    .join(worker, worker.c.uuid == WORKER.c.worker)
    .order_by(worker.c.id.desc())
    .limit(sa.bindparam("most"))
)
_ALL_WORKERS = Prepared(_WORKERS)
_WORKERS_OF_STUDY = Prepared(_WORKERS.where(worker.c.study_id == sa.bindparam("study")))


def studies(txn: Txn) -> list[Any]:
    """`v_study`, oldest first."""
    return txn.all(_STUDIES)


def study(txn: Txn, *, name: str) -> Any | None:
    """The row of `v_study` of that name."""
    return txn.first(_STUDY, study_name=name)


def trials(
    txn: Txn,
    *,
    study_id: int,
    name: str,
    state: State | None = None,
    by_best: bool = False,
    limit: int | None = None,
) -> list[Any]:
    """
    `v_trial` of one study, by number.

    Args:
        by_best: Best first instead, by the score that NaN and either mode are ranked by; trials
            without a result come last.
    """
    query = _RANKED if by_best else _BY_NUMBER
    params: dict[str, Any] = {"study": study_id} if by_best else {}
    if state is not None:
        query = query.where(TRIAL.c.state == sa.bindparam("of_state", type_=_Text))
        params["of_state"] = state
    if limit is not None:
        query = query.limit(limit)
    return txn.all(query, study_name=name, **params)


def trials_numbered(txn: Txn, *, name: str, numbers: Sequence[int]) -> list[Any]:
    """The rows of `v_trial` with these numbers, ascending."""
    return txn.all(_LISTED, study_name=name, numbers=list(numbers))


def trial_page(txn: Txn, *, name: str, first: int, beyond: int) -> list[Any]:
    """`v_trial` of one study from one number up to, not including, another."""
    return txn.all(_TRIAL_PAGE, study_name=name, first=first, beyond=beyond)


def beyond_numbers(txn: Txn, *, study_id: int) -> int:
    """The first number that no trial of the study has."""
    return int(txn.all(_BEYOND, study=study_id)[0].beyond)


def result_page(txn: Txn, *, study_id: int, after: tuple[int, int, int], most: int) -> list[Any]:
    """
    The live results that follow a place, in the order of the primary key: by trial and step.

    Live as `v_result` says, which this does not read: joining the study's metric into each row's
    JSON only to take it out again costs more than the rest.

    Args:
        after: `trial_id`, `attempt` and `step` of the row before; (0, 0, 0) for the first page.
    """
    trial_id, attempt_no, step = after
    return txn.all(
        _RESULT_PAGE,
        study=study_id,
        after_trial=trial_id,
        after_attempt=attempt_no,
        after_step=step,
        most=most,
    )


def attempts(txn: Txn, *, name: str, number: int) -> list[Any]:
    """`v_attempt` of one trial, oldest first."""
    return txn.all(_ATTEMPTS, study_name=name, no=number)


def workers(txn: Txn, *, study_id: int | None = None, most: int) -> list[Any]:
    """`v_worker` with `lease_s` and what tells a process apart, newest first; of one or all."""
    if study_id is None:
        return txn.all(_ALL_WORKERS, most=most)
    return txn.all(_WORKERS_OF_STUDY, study=study_id, most=most)
