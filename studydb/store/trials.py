"""
Rows of trials: insert, find and list them; change their configs, requests and invalidation.

The states of trials that no attempt holds are changed here, too.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import in_state, is_still, study, trial
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import FINAL, Origin, Reason, State, Status, sources
from studydb.domain.metrics import Summary
from studydb.domain.records import TrialRow
from studydb.domain.space.search_space import params_hash
from studydb.store import tags


class NamedTrial(NamedTuple):
    """The number and the uuid of a trial that was found by its name."""

    number: int
    uuid: str


SUMMARY = (
    trial.c.n_results,
    trial.c.last_step,
    trial.c.last_value,
    trial.c.best_value,
    trial.c.best_step,
    trial.c.best_score,
)

_GIVEN = (
    "uuid",
    "study_id",
    "number",
    "params",
    "params_hash",
    "config",
    "is_unique",
    "space_version",
    "origin",
    "parent_id",
    "draw",
    "counted",
    "priority",
    "bracket",
)
NEW = {name: sa.bindparam(name) for name in _GIVEN} | {
    "ready": True,
    "resource_class": "",
    "failures": 0,
    "losses": 0,
    "flush_no": 0,
    "checkpoint_step": 0,
    "n_results": 0,
    "created_at": now(),
}


def inserting(row: Mapping[str, Any], *conditions: sa.ColumnElement[bool]) -> sa.Insert:
    """Make the INSERT … SELECT of a trial from the values of its columns."""
    values = {
        name: value
        if isinstance(value, sa.ColumnElement)
        else sa.literal(value, trial.c[name].type)
        for name, value in row.items()
    }
    return sa.insert(trial).from_select([*values], sa.select(*values.values()).where(*conditions))


_other = trial.alias("other")
_no_unique_trial_has_its_params = ~sa.exists().where(
    _other.c.study_id == sa.bindparam("study_id"),
    _other.c.params_hash == sa.bindparam("params_hash"),
    _other.c.is_unique,
)
_IS_UNIQUE = sa.case(
    (
        sa.and_(sa.bindparam("wants_unique", type_=sa.Boolean), _no_unique_trial_has_its_params),
        sa.true(),
    )
)

_INSERT_PENDING = Prepared(
    sa.insert(trial)
    .values(
        NEW
        | {
            "state": State.PENDING,
            "attempt": 0,
            "is_unique": _IS_UNIQUE,
            "name": sa.bindparam("name", type_=sa.Text),
            "resource_class": sa.bindparam("resource_class", type_=sa.Text),
        }
    )
    .returning(trial.c.id)
)

_BY_NUMBER = (trial.c.study_id == sa.bindparam("study"), trial.c.number == sa.bindparam("no"))

_parent = trial.alias("parent")
_PARENT = (
    sa.select(_parent.c.number)
    .where(_parent.c.id == trial.c.parent_id)
    .scalar_subquery()
    .label("parent")
)

ROW = (trial, tags.OF_TRIAL, _PARENT)
"""The columns from which `read` makes a `TrialRow`."""

_FIND = Prepared(sa.select(*ROW).where(*_BY_NUMBER))
_FIND_LOCKED = Prepared(sa.select(*ROW).where(*_BY_NUMBER).with_for_update(key_share=True))
_BY_NAME = Prepared(
    sa.select(trial.c.number, trial.c.uuid).where(
        trial.c.study_id == sa.bindparam("study"),
        trial.c.name == sa.bindparam("by_name", type_=sa.Text),
    )
)
_NAMES = Prepared(
    sa.select(trial.c.name)
    .where(trial.c.study_id == sa.bindparam("study"), trial.c.name.is_not(None))
    .order_by(trial.c.name)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)

_IDS = Prepared(
    sa.select(trial.c.id)
    .where(trial.c.study_id == sa.bindparam("study"), is_listed(trial.c.number, "numbers"))
    .order_by(trial.c.number)
)


def status_of_study(study_id: sa.ColumnElement[int]) -> sa.ScalarSelect[str]:
    """Make a subquery that reads the study's stored status."""
    return sa.select(study.c.status).where(study.c.id == study_id).scalar_subquery()


_REQUEST = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"), is_still(State.RUNNING))
    .values(
        request=sa.bindparam("to_request"),
        request_now=sa.bindparam("now", type_=sa.Boolean),
    )
    .returning(trial.c.id)
)


def may_become(target: State) -> sa.ColumnElement[bool]:
    """Make an expression that is true if a trial may move from its state to `target`."""
    names = ", ".join(f"'{source}'" for source in sorted(sources(target)))
    return sa.literal_column(f"trial.state IN ({names})", sa.Boolean)


def _move_to(target: State) -> Prepared:
    is_terminated = target is State.TERMINATED
    return Prepared(
        sa.update(trial)
        .where(
            trial.c.id == sa.bindparam("trial"), may_become(target), trial.c.state != State.RUNNING
        )
        .values(
            state=target,
            ready=target is State.PENDING,
            ready_at=None,
            request=None,
            paused_by=sa.bindparam("by", None, sa.Text) if target is State.PAUSED else None,
            reason=sa.bindparam("why", Reason.CANCELLED, sa.Text) if is_terminated else None,
            ended_at=now() if is_terminated else None,
            metric_summary=sa.bindparam("to_metrics", None, trial.c.metric_summary.type),
        )
        .returning(trial.c.id)
    )


_MOVES = {state: _move_to(state) for state in (State.PENDING, State.PAUSED, State.TERMINATED)}

_SET_PAUSED_BY = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"), is_still(State.PAUSED))
    .values(paused_by=sa.bindparam("to_paused_by"))
)

_CHANGE_CONFIG = Prepared(
    sa.update(trial)
    .where(
        trial.c.id == sa.bindparam("trial"),
        sa.or_(is_still(State.PENDING), is_still(State.PAUSED)),
    )
    .values(
        config=sa.bindparam("to_config", type_=trial.c.config.type),
        changed=sa.bindparam("to_changed", type_=trial.c.changed.type),
    )
    .returning(trial.c.id)
)

_INVALIDATE = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(
        invalidated_at=sa.func.coalesce(
            trial.c.invalidated_at, now(), type_=trial.c.invalidated_at.type
        ),
        rank_score=None,
        request=sa.case((is_still(State.RUNNING), Action.STOP), else_=trial.c.request),
    )
)
_REINSTATE = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(
        invalidated_at=None,
        rank_score=sa.bindparam("to_rank_score", type_=sa.Double),
        request=None,
        request_now=None,
    )
)

_WITHOUT_METRIC_SUMMARY = (
    trial.c.id == sa.bindparam("trial"),
    trial.c.ended_at.is_not(None),
    trial.c.n_results > 0,
    trial.c.metric_summary.is_(sa.null()),
)
_LACKS_METRIC_SUMMARY = Prepared(sa.select(trial.c.id).where(*_WITHOUT_METRIC_SUMMARY))
_STORE_METRIC_SUMMARY = Prepared(
    sa.update(trial)
    .where(*_WITHOUT_METRIC_SUMMARY)
    .values(metric_summary=sa.bindparam("to_metrics", type_=trial.c.metric_summary.type))
)


def insert(
    txn: Txn,
    *,
    study_id: int,
    uuid: str,
    number: int,
    params: Mapping[str, Any],
    config: Mapping[str, Any],
    space_version: int,
    origin: Origin,
    wants_unique: bool = False,
    bracket: int = 0,
    priority: int = 0,
    parent_id: int | None = None,
    counted: bool = True,
    name: str | None = None,
    resource_class: str = "",
) -> int:
    """
    Insert a PENDING trial; the caller has locked the study's row.

    Args:
        wants_unique: Whether to set `is_unique`: two trials with `is_unique` cannot have the same
            params. If a trial with `is_unique` has these params already, the new trial's
            `is_unique` is NULL.
    """
    row = txn.all(
        _INSERT_PENDING,
        study_id=study_id,
        uuid=uuid,
        number=number,
        name=name,
        resource_class=resource_class,
        params=dict(params),
        params_hash=params_hash(params),
        config=dict(config),
        wants_unique=wants_unique,
        space_version=space_version,
        origin=origin,
        parent_id=parent_id,
        draw=None,
        counted=counted,
        priority=priority,
        bracket=bracket,
    )[0]
    return int(row.id)


def find(txn: Txn, *, study_id: int, number: int, lock: bool = False) -> TrialRow | None:
    """Find a trial by its number; `lock` locks its row until the transaction ends."""
    row = txn.first(_FIND_LOCKED if lock else _FIND, study=study_id, no=number)
    return None if row is None else read(row)


def ids(txn: Txn, *, study_id: int, numbers: Sequence[int]) -> list[int]:
    """Read the ids of trials in the order of their numbers; unknown numbers are left out."""
    return [row.id for row in txn.all(_IDS, study=study_id, numbers=list(numbers))]


def named(txn: Txn, *, study_id: int, name: str) -> NamedTrial | None:
    """Find a trial by its name."""
    row = txn.first(_BY_NAME, study=study_id, by_name=name)
    return None if row is None else NamedTrial._make(row)


def some_names(txn: Txn, *, study_id: int, limit: int) -> list[str]:
    """Read the first `limit` names of a study's trials, in alphabetical order."""
    return [row.name for row in txn.all(_NAMES, study=study_id, limit=limit)]


def move(
    txn: Txn,
    *,
    trial_id: int,
    target: State,
    by: DecidedBy = DecidedBy.PERSON,
    reason: Reason = Reason.CANCELLED,
    metric_summary: Mapping[str, Any] | None = None,
) -> bool:
    """
    Change the state of a trial that no attempt holds, for a person or for the scheduler.

    Args:
        by: Who pauses the trial; used only if `target` is PAUSED.
        reason: Why the trial ends; used only if `target` is TERMINATED.
        metric_summary: The summary of the metrics of a trial that ends; None for other targets.

    Returns:
        False if this change is not allowed, or an attempt holds the trial.
    """
    params: dict[str, Any] = {"to_metrics": metric_summary}
    if target is State.PAUSED:
        params["by"] = by
    elif target in FINAL:
        params["why"] = reason
    return txn.count(_MOVES[target], trial=trial_id, **params) == 1


def lacks_metric_summary(txn: Txn, *, trial_id: int) -> bool:
    """Tell whether a trial has ended with results but without the summary of its metrics."""
    return txn.first(_LACKS_METRIC_SUMMARY, trial=trial_id) is not None


def store_metric_summary(txn: Txn, *, trial_id: int, metric_summary: Mapping[str, Any]) -> None:
    """Store an ended trial's metric summary, if the trial has results but no metric summary."""
    txn.run(_STORE_METRIC_SUMMARY, trial=trial_id, to_metrics=metric_summary)


def set_paused_by(txn: Txn, *, trial_id: int, by: DecidedBy) -> None:
    """Store in `paused_by` who paused a PAUSED trial; this value decides who may resume it."""
    txn.run(_SET_PAUSED_BY, trial=trial_id, to_paused_by=by)


def change_config(
    txn: Txn, *, trial_id: int, config: Mapping[str, Any], changed: Mapping[str, Any]
) -> bool:
    """
    Store the config that the next attempt of a PENDING or PAUSED trial receives.

    Args:
        changed: The values in `config` that differ from the trial's params, by path.

    Returns:
        False if the trial runs or has ended.
    """
    binds = {"to_config": dict(config), "to_changed": dict(changed) or None}
    return txn.count(_CHANGE_CONFIG, trial=trial_id, **binds) == 1


def invalidate(txn: Txn, *, trial_id: int) -> None:
    """Mark a locked trial as invalidated and unranked; ask it to stop if it is RUNNING."""
    txn.run(_INVALIDATE, trial=trial_id)


def reinstate(txn: Txn, *, trial_id: int, rank_score: float | None) -> None:
    """Undo the invalidation of a locked trial: store its rank score, and clear its request."""
    txn.run(_REINSTATE, trial=trial_id, to_rank_score=rank_score)


def request(txn: Txn, *, trial_id: int, action: Action | None, now: bool = False) -> bool:
    """
    Set or clear a RUNNING trial's `request`; the attempt obeys at the next flush or renewal.

    Args:
        now: Whether the worker kills the trial's process without the worker's grace.

    Returns:
        False if the trial is not RUNNING.
    """
    return txn.count(_REQUEST, trial=trial_id, to_request=action, now=now or None) == 1


@cache
def _list(state: State | None, *, limited: bool) -> Prepared:
    query = sa.select(*ROW).where(trial.c.study_id == sa.bindparam("study"))
    if state is not None:
        query = query.where(in_state(state))
    if limited:
        query = query.limit(sa.bindparam("most", type_=sa.BigInteger))
    return Prepared(query.order_by(trial.c.number))


def listing(
    txn: Txn, *, study_id: int, state: State | None = None, limit: int | None = None
) -> list[TrialRow]:
    """Read a study's trials, ordered by number."""
    most = {} if limit is None else {"most": limit}
    rows = txn.all(_list(state, limited=limit is not None), study=study_id, **most)
    return [read(row) for row in rows]


def read(row: Any) -> TrialRow:
    return TrialRow(
        id=row.id,
        uuid=row.uuid,
        number=row.number,
        name=row.name,
        tags=row.tags,
        state=State(row.state),
        reason=None if row.reason is None else Reason(row.reason),
        params=row.params,
        config=row.config,
        changed=row.changed or {},
        origin=Origin(row.origin),
        bracket=row.bracket,
        attempt=row.attempt,
        failures=row.failures,
        losses=row.losses,
        summary=summary_of(row),
        verdict=verdict_of(row),
        request=row.request,
        paused_by=row.paused_by,
        checkpoint_id=row.checkpoint_id,
        source_checkpoint_id=row.source_checkpoint_id,
        parent=row.parent,
        invalidated_at=row.invalidated_at,
        worker_id=row.worker_id,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        running_s=row.running_s,
    )


def summary_of(row: Any) -> Summary:
    """Make a `Summary` from the columns of a row."""
    return Summary(
        row.n_results, row.last_step, row.last_value, row.best_value, row.best_step, row.best_score
    )


def verdict_of(row: Any) -> Verdict | None:
    """Make a `Verdict` from the columns of a row; None if the row has no verdict."""
    if row.verdict is None:
        return None
    # `verdict_by` has no CHECK, and a renewal must not fail because of an unknown value.
    known = row.verdict_by in set(DecidedBy)
    by = DecidedBy(row.verdict_by) if known else DecidedBy.PERSON
    return Verdict(Action(row.verdict), Reason(row.verdict_reason), by)


def verdict_binds(verdict: Verdict | None) -> dict[str, Any]:
    """Return the binds of a verdict's columns."""
    return {
        "to_verdict": verdict and verdict.action,
        "to_verdict_reason": verdict and verdict.reason,
        "to_verdict_by": verdict and verdict.by,
    }


_PAUSED_WHILE_TRIALS_RUN = (
    DecidedBy.GUARD,
    DecidedBy.RULE,
    DecidedBy.SCHEDULER,
    DecidedBy.REQUESTS,
)


def _literal(by: DecidedBy) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{by}'", sa.Text)


STATUS_FOR_RUNNING_TRIALS = sa.case(
    (study.c.paused_by.in_([_literal(by) for by in _PAUSED_WHILE_TRIALS_RUN]), Status.RUNNING),
    (study.c.paused_by == _literal(DecidedBy.LIMIT), Status.SPENT),
    else_=study.c.status,
)
"""
The status that RUNNING trials obey: the study's own status, except in two cases. They obey RUNNING
if the study has paused itself, by its guard or because a custom rule, a custom scheduler or a
resource function gave no answer. They obey SPENT if a limit or a stop rule has stopped the study.
"""


def status_for_running_trials(study_id: sa.ColumnElement[int]) -> sa.ScalarSelect[str]:
    """Make a subquery that reads the status that the RUNNING trials of a study obey."""
    return sa.select(STATUS_FOR_RUNNING_TRIALS).where(study.c.id == study_id).scalar_subquery()


def is_stopped_at_once(study_id: sa.ColumnElement[int]) -> sa.ScalarSelect[bool]:
    """Make a subquery that tells whether a study was stopped without its workers' grace."""
    return sa.select(study.c.stopped_at_once).where(study.c.id == study_id).scalar_subquery()
