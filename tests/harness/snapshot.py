"""
A study's rows without ids, so that two databases, or a database and a model, can be compared.

Times are seconds since `BEGINNING`, NaN is a text, and trials are named by their numbers.
"""

import math
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from studydb.db import Database, Prepared, Txn
from studydb.db.decision_schema import resource_class, rung, rung_entry
from studydb.db.schema import (
    attempt,
    checkpoint,
    counter,
    event,
    result,
    study,
    trial,
    upload,
    worker,
)
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import State
from studydb.domain.records import Study
from studydb.store import ranking

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)

Snapshot = dict[str, Any]
"""
What a database holds of a study, by name: the rows of each kind, what is computed from rows
(counts, spending, the ranking), and the checkpoints of the second study (see `other_name`).
"""

GONE = "gone"
"""Stands for a checkpoint whose row has been deleted."""

_STUDY = (
    *("status", "paused_by", "pause_reason"),
    *("num_trials", "next_number", "next_draw", "n_counted", "n_running", "checkpoint_bytes"),
)
_VERDICT = ("verdict", "verdict_reason", "verdict_by")
_TRIAL = (
    *("state", "reason", "origin", "draw", "bracket", "priority", "request"),
    *(*_VERDICT, "paused_by"),
    *("attempt", "failures", "losses"),
    *("token", "lease_s", "lease_expires_at", "suspect_at", "checkpoint_step"),
    *("n_results", "last_step", "last_value", "best_value", "best_step", "best_score"),
    *("time_total_s", "running_s", "running_until", "created_at", "started_at", "ended_at"),
    *("changed", "invalidated_at", "resource_class"),
)
_ATTEMPT = (
    *("token", "start_step", "flush_no", "started_at", "ended_at", "reason", "error_type"),
    *_VERDICT,
)
_CHECKPOINT = ("uuid", "attempt", "step", "size_bytes", "url", "pins")
_UPLOAD = ("uuid", "attempt", "started_at")
_ENTRY = (
    "attempt",
    "step",
    "value",
    "score",
    "ranked",
    "action",
    "cutoff",
    "waiting",
    "promoted_at",
)
_EVENT = ("attempt", "kind", "actor", "token", "data")
_WORKER = ("uuid", "pid", "lease_s", "seen_at", "ended_at", "request", "reserved_for")


def _of_study(table: sa.Table, *order: Any) -> Prepared:
    return Prepared(
        sa.select(table).where(table.c.study_id == sa.bindparam("study")).order_by(*order)
    )


_THE_STUDY = Prepared(sa.select(study).where(study.c.id == sa.bindparam("study")))
_TRIALS = _of_study(trial, trial.c.number)
_ATTEMPTS = _of_study(attempt, attempt.c.trial_id, attempt.c.attempt)
_RESULTS = _of_study(result, result.c.trial_id, result.c.attempt, result.c.step)
_CHECKPOINTS = _of_study(checkpoint, checkpoint.c.id)
_CLASSES = _of_study(resource_class, resource_class.c.name)
_OTHER_STUDY = Prepared(sa.select(study.c.id).where(study.c.name == sa.bindparam("other")))
_UPLOADS = _of_study(upload, upload.c.id)
_COUNTERS = _of_study(counter, counter.c.shard)
_RUNGS = _of_study(rung, rung.c.bracket, rung.c.step)
_ENTRIES = Prepared(
    sa.select(rung_entry, rung.c.bracket, rung.c.step.label("milestone"))
    .join(rung, rung.c.id == rung_entry.c.rung_id)
    .where(rung.c.study_id == sa.bindparam("study"))
    .order_by(rung.c.bracket, rung.c.step, rung_entry.c.ordinal)
)
_EVENTS = _of_study(event, event.c.id)
_WORKERS = _of_study(worker, worker.c.id)


def take_snapshot(database: Database, of: Study) -> Snapshot:
    with database.begin(write=False) as txn:
        rows = txn.all(_TRIALS, study=of.id)
        numbers = {row.id: row.number for row in rows}
        saved = txn.all(_CHECKPOINTS, study=of.id)
        foreign = _of_other_study(txn, of)
        names = {None: None} | {row.id: row.uuid for row in (*saved, *foreign)}
        attempts = txn.all(_ATTEMPTS, study=of.id)
        workers = txn.all(_WORKERS, study=of.id)
        holders = {None: None} | {row.id: row.uuid for row in workers}
        return {
            "study": [_columns_of(row, _STUDY) for row in txn.all(_THE_STUDY, study=of.id)],
            "trials": {row.number: _trial(row, names, holders, numbers) for row in rows},
            "attempts": {
                (numbers[row.trial_id], row.attempt): _columns_of(row, _ATTEMPT)
                | {"restored": names.get(row.restored_id, GONE), "worker": holders[row.worker_id]}
                for row in attempts
            },
            "results": _results(txn.all(_RESULTS, study=of.id), attempts, numbers),
            "checkpoints": [{"number": numbers[row.trial_id]} | _checkpoint(row) for row in saved],
            "uploads": [
                {"number": numbers.get(row.trial_id)} | _columns_of(row, _UPLOAD)
                for row in txn.all(_UPLOADS, study=of.id)
            ],
            "foreign": [_checkpoint(row) for row in foreign],
            "counts": _counts(txn, of),
            "spending": _spending(txn, of),
            "rungs": _rungs(txn, of, numbers),
            "best": [
                one.number for one in ranking.best(txn, study_id=of.id, limit=len(numbers) or 1)
            ],
            "resources": {row.name: row.request for row in txn.all(_CLASSES, study=of.id)},
            "workers": [_columns_of(row, _WORKER) for row in workers],
            "events": [
                {"number": numbers.get(row.trial_id)} | _columns_of(row, _EVENT)
                for row in txn.all(_EVENTS, study=of.id)
                if row.kind != EventKind.SCHEDULER_IDLE  # each free worker may write such an event
            ],
        }


def other_name(of: Study) -> str:
    """Return the name of the second study; trials of study `of` may begin from its checkpoints."""
    return f"{of.name}-other"


def _of_other_study(txn: Txn, of: Study) -> list[Any]:
    other = txn.first(_OTHER_STUDY, other=other_name(of))
    return [] if other is None else txn.all(_CHECKPOINTS, study=other.id)


def plain(value: Any) -> Any:
    """A value that can be compared: NaN as a text, a time as seconds since `BEGINNING`."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, datetime):
        return (value - BEGINNING).total_seconds()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _columns_of(row: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    return {name: plain(getattr(row, name)) for name in columns}


def _trial(
    row: Any,
    names: dict[int | None, str | None],
    holders: dict[int | None, str | None],
    numbers: dict[int, int],
) -> dict[str, Any]:
    columns = _columns_of(row, _TRIAL)
    columns["ready"] = bool(row.ready) if row.state == State.PENDING else None
    columns["ready_at"] = plain(row.ready_at) if columns["ready"] is False else None
    columns["flush_no"] = row.flush_no if row.state == State.RUNNING else None
    columns["rank_score"] = None if row.state == State.RUNNING else row.rank_score
    columns["worker"] = holders[row.worker_id]
    columns["checkpoint"] = names.get(row.checkpoint_id, GONE)
    columns["source"] = names.get(row.source_checkpoint_id, GONE)
    columns["parent"] = row.parent_id and numbers[row.parent_id]
    columns["metric_summary"] = plain(row.metric_summary)
    columns["params"] = row.params
    return columns


def _results(
    rows: list[Any], attempts: list[Any], numbers: dict[int, int]
) -> dict[tuple[int, int], Any]:
    """For each (trial number, attempt) and each step: the value, and whether it is live."""
    through = {(row.trial_id, row.attempt): row.live_through for row in attempts}
    found: dict[tuple[int, int], Any] = defaultdict(dict)
    for row in rows:
        live = row.step <= through[row.trial_id, row.attempt]
        found[numbers[row.trial_id], row.attempt][row.step] = (plain(row.value), live)
    return dict(found)


def _checkpoint(row: Any) -> dict[str, Any]:
    return _columns_of(row, _CHECKPOINT) | {
        "data": row.data is not None,
        "corrupt": row.corrupt_at is not None,
        "removed": row.removed_at is not None,
    }


def _counts(txn: Txn, of: Study) -> dict[str, int]:
    shards = txn.all(_COUNTERS, study=of.id)
    return {state: sum(getattr(row, state.lower()) for row in shards) for state in State}


def _spending(txn: Txn, of: Study) -> dict[str, float]:
    shards = txn.all(_COUNTERS, study=of.id)
    names = ("cost", "steps", "time_s")
    return {name: round(sum(getattr(row, name) for row in shards), 6) for name in names}


def _rungs(txn: Txn, of: Study, numbers: dict[int, int]) -> dict[tuple[int, int], Any]:
    entries: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for row in txn.all(_ENTRIES, study=of.id):
        entries[row.bracket, row.milestone].append(
            {"number": numbers.get(row.trial_id), "ordinal": row.ordinal} | _columns_of(row, _ENTRY)
        )
    return {
        (row.bracket, row.step): {
            "n_entries": row.n_entries,
            "n_ranked": row.n_ranked,
            "cut_rank": row.cut_rank,
            "cut": row.cut_trial_id and (row.cut_score, numbers.get(row.cut_trial_id)),
            "last_kept": None if row.closed_at is None else (row.closed_cutoff, row.closed_ordinal),
            "is_over": bool(row.is_over),
            "entries": entries[row.bracket, row.step],
        }
        for row in txn.all(_RUNGS, study=of.id)
        if row.n_entries  # a report may create a rung without adding an entry
    }
