"""
The tables: one schema for PostgreSQL and SQLite.

Ids are never reused. Heartbeats and reports change no column that has an index, so that PostgreSQL
writes no index for them (HOT updates). `result` and `rung_entry` have no foreign keys, because the
fence proves that the trial exists. A query that needs a partial index writes the condition of the
index with literals, because PostgreSQL does not choose the index for a bind.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from studydb.db.checks import guard
from studydb.db.types import Json, Number, UtcDateTime
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import FINAL, Mode, Origin, Reason, State, Status

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

NOT_SUPERSEDED = 2**62
"""The value of `attempt.live_through` until a later attempt trains one of the steps again."""

Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _table_with_id(name: str, *items: SchemaItem) -> sa.Table:
    key = sa.Column("id", Id, sa.Identity(), primary_key=True)
    return sa.Table(name, METADATA, key, *items, sqlite_autoincrement=True)


def _study_id() -> sa.Column[int]:
    return sa.Column("study_id", Id, sa.ForeignKey("study.id"), nullable=False)


def _one_of(column: str, values: Iterable[StrEnum]) -> dict[str, str]:
    names = ", ".join(f"'{value}'" for value in values)
    return {column: f"{{{column}}} IN ({names})"}


_HEX = "ltrim({uuid}, '0123456789abcdef-') = ''"
UUID = f"length({{uuid}}) = 36 AND {_HEX}"
"""UUIDs become parts of paths, so a row must not hold any other text."""


def _required(name: str, kind: Any, *args: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *args, nullable=False, **options)


study = _table_with_id(
    "study",
    _required("uuid", sa.Text, unique=True),
    _required("name", sa.Text, unique=True),
    _required("status", sa.Text),
    _required("metric", sa.Text),
    _required("mode", sa.Text),
    _required("seed", sa.BigInteger),
    _required("space_version", sa.Integer),
    _required("scheduler", Json),
    sa.Column("searcher", Json),
    _required("rules", Json),
    sa.Column("num_trials", sa.BigInteger),
    sa.Column("num_draws", sa.BigInteger),
    sa.Column("max_concurrent", sa.Integer),
    _required("max_failures", sa.Integer),
    _required("max_losses", sa.Integer),
    sa.Column("checkpoints", sa.Text),
    sa.Column("settings", Json),
    _required("next_number", sa.BigInteger, server_default="0"),
    _required("next_draw", sa.BigInteger, server_default="0"),
    _required("n_counted", sa.BigInteger, server_default="0"),
    _required("n_running", sa.Integer, server_default="0"),
    sa.Column("created_by", sa.Text),
    _required("created_at", UtcDateTime),
    sa.Column("points", Json),
    sa.Column("paused_by", sa.Text),
    sa.Column("pause_reason", sa.Text),
)
"""
`num_trials` limits `n_counted`, the number of trials; `max_concurrent` limits `n_running`, which is
updated only if there is this limit. `points` holds the searcher's proposals for the next draws,
keyed by batch number. `paused_by` is who or what paused the study ('person', …).
"""

guard(
    study,
    **_one_of("status", [Status.RUNNING, Status.PAUSED, Status.STOPPED]),
    **_one_of("mode", Mode),
    uuid=UUID,
)

search_space = sa.Table(
    "search_space",
    METADATA,
    _study_id(),
    _required("version", sa.Integer),
    _required("space", Json),
    _required("created_at", UtcDateTime),
    sa.PrimaryKeyConstraint("study_id", "version"),
)

trainable = _table_with_id(
    "trainable",
    _required("uuid", sa.Text, unique=True),
    _study_id(),
    _required("kind", sa.Text),
    _required("name", sa.Text),
    _required("workdir", sa.Text),
    _required("python_version", sa.Text),
    sa.Column("source", sa.LargeBinary),
    _required("created_at", UtcDateTime),
)

guard(trainable, uuid=UUID)

signature = sa.Table(
    "signature",
    METADATA,
    _required("trainable_id", Id, sa.ForeignKey("trainable.id")),
    _required("key_id", sa.Text),
    _required("mac", sa.Text),
    sa.PrimaryKeyConstraint("trainable_id", "key_id"),
)

_PENDING, _RUNNING = f"state = '{State.PENDING}'", f"state = '{State.RUNNING}'"
_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))


def _partial(name: str, *columns: str, where: str, sqlite_where: str | None = None) -> sa.Index:
    return sa.Index(
        name, *columns, postgresql_where=sa.text(where), sqlite_where=sa.text(sqlite_where or where)
    )


trial = _table_with_id(
    "trial",
    _required("uuid", sa.Text, unique=True),
    _study_id(),
    _required("number", sa.BigInteger),
    sa.Column("name", sa.Text),
    _required("state", sa.Text),
    sa.Column("reason", sa.Text),
    _required("params", Json),
    _required("params_hash", sa.Text),
    _required("space_version", sa.Integer),
    _required("origin", sa.Text),
    sa.Column("parent_id", Id),
    sa.Column("draw", sa.BigInteger),
    _required("counted", sa.Boolean),
    _required("priority", sa.Integer),
    _required("ready", sa.Boolean),
    sa.Column("ready_at", UtcDateTime),
    _required("resource_class", sa.Text),
    sa.Column("resources", Json),
    _required("bracket", sa.Integer),
    sa.Column("request", sa.Text),
    sa.Column("verdict", sa.Text),
    sa.Column("verdict_reason", sa.Text),
    sa.Column("verdict_by", sa.Text),
    sa.Column("paused_by", sa.Text),
    _required("attempt", sa.Integer),
    _required("failures", sa.Integer),
    _required("losses", sa.Integer),
    sa.Column("token", sa.Text),
    _required("flush_no", sa.Integer),
    sa.Column("worker_id", Id),
    sa.Column("lease_s", sa.Double),
    sa.Column("lease_expires_at", UtcDateTime),
    sa.Column("suspect_at", UtcDateTime),
    sa.Column("checkpoint_id", Id),
    _required("checkpoint_step", sa.BigInteger),
    _required("n_results", sa.BigInteger),
    sa.Column("last_step", sa.BigInteger),
    sa.Column("last_value", Number),
    sa.Column("best_value", Number),
    sa.Column("best_step", sa.BigInteger),
    sa.Column("best_score", sa.Double),
    sa.Column("rank_score", sa.Double),
    sa.Column("time_total_s", sa.Double),
    sa.Column("metric_summary", Json),
    sa.Column("invalidated_at", UtcDateTime),
    _required("created_at", UtcDateTime),
    sa.Column("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.UniqueConstraint("study_id", "number"),
    sa.UniqueConstraint("study_id", "draw"),
    _partial(
        "trial_claim",
        "study_id",
        "resource_class",
        "priority",
        "number",
        where=f"{_PENDING} AND ready",
        sqlite_where=f"{_PENDING} AND ready = 1",
    ),
    _partial(
        "trial_backoff",
        "study_id",
        "ready_at",
        where=f"{_PENDING} AND NOT ready",
        sqlite_where=f"{_PENDING} AND ready = 0",
    ),
    _partial("trial_running", "study_id", where=_RUNNING),
    _partial("trial_paused", "study_id", where="state = 'PAUSED'"),
    _partial("trial_rank", "study_id", "rank_score", "number", where="rank_score IS NOT NULL"),
    sa.Index("trial_params", "study_id", "params_hash"),
)
"""
Trials with a lower `priority` run first. `rank_score` is set to `best_score` when an attempt ends,
so one index probe finds the best trial, and reports stay HOT. `checkpoint_step` is the highest step
ever saved. `flush_no` counts the attempt's flushes; the attempt's end copies it to `attempt`.
"""

guard(
    trial,
    **_one_of("state", State),
    **_one_of("reason", Reason),
    **_one_of("origin", Origin),
    **_one_of("verdict", [Action.STOP, Action.PAUSE, Action.EXPLOIT]),
    **_one_of("request", [Action.STOP, Action.PAUSE]),
    lease="({state} = 'RUNNING') = ({token} IS NOT NULL)",
    verdict_runs="{verdict} IS NULL OR {state} = 'RUNNING'",
    verdict_why="({verdict} IS NULL) = ({verdict_reason} IS NULL)",
    paused="({state} = 'PAUSED') = ({paused_by} IS NOT NULL)",
    ended=f"({{state}} IN ({_FINAL})) = ({{ended_at}} IS NOT NULL)",
    why="({ended_at} IS NULL) = ({reason} IS NULL)",
    uuid=UUID,
)

attempt = sa.Table(
    "attempt",
    METADATA,
    _required("trial_id", Id, sa.ForeignKey("trial.id")),
    _required("attempt", sa.Integer),
    _required("study_id", Id),
    _required("token", sa.Text, unique=True),
    sa.Column("worker_id", Id),
    _required("config", Json),
    _required("start_step", sa.BigInteger),
    _required("live_through", sa.BigInteger),
    _required("flush_no", sa.Integer),
    sa.Column("restored_id", Id),
    sa.Column("source_trial_id", Id),
    _required("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("reason", sa.Text),
    sa.Column("verdict", sa.Text),
    sa.Column("verdict_reason", sa.Text),
    sa.Column("verdict_by", sa.Text),
    sa.Column("error_type", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("traceback", sa.Text),
    sa.Column("log_dir", sa.Text),
    sa.Column("log_tail", sa.Text),
    sa.Column("start", sa.Text),
    sa.Column("start_s", sa.Double),
    sa.Column("provenance", Json),
    sa.PrimaryKeyConstraint("trial_id", "attempt"),
)
"""
`start_step` is the attempt's first step, `restored_id` the checkpoint that the attempt began from,
`source_trial_id` the trial of that checkpoint. `start` is "warm" or "fresh", and `start_s` the
seconds from the claim to the first line of the trainable.
"""

guard(attempt, **_one_of("reason", Reason))

result = sa.Table(
    "result",
    METADATA,
    _required("study_id", Id, autoincrement=False),
    _required("trial_id", Id, autoincrement=False),
    _required("attempt", sa.Integer, autoincrement=False),
    _required("step", sa.BigInteger, autoincrement=False),
    _required("value", Number),
    sa.Column("metrics", Json),
    sa.Column("time_total_s", sa.Double),
    _required("reported_at", UtcDateTime),
    sa.PrimaryKeyConstraint("study_id", "trial_id", "attempt", "step"),
    sqlite_with_rowid=False,
)

checkpoint = _table_with_id(
    "checkpoint",
    _required("uuid", sa.Text, unique=True),
    _required("study_id", Id),
    _required("trial_id", Id, sa.ForeignKey("trial.id"), index=True),
    _required("attempt", sa.Integer),
    _required("step", sa.BigInteger),
    _required("kind", sa.Text),
    _required("url", sa.Text),
    _required("digest", sa.Text),
    _required("size_bytes", sa.BigInteger),
    sa.Column("key_id", sa.Text),
    sa.Column("mac", sa.Text),
    sa.Column("data", sa.LargeBinary),
    _required("pins", sa.Integer),
    _required("created_at", UtcDateTime),
    sa.Column("corrupt_at", UtcDateTime),
    sa.Column("removed_at", UtcDateTime),
)
"""
After `removed_at` the checkpoint is not restored, and its bytes are deleted. A checkpoint with
`pins` above 0 does not expire.
"""

guard(checkpoint, uuid=UUID)

worker = _table_with_id(
    "worker",
    _required("uuid", sa.Text, unique=True),
    _study_id(),
    _required("host", sa.Text),
    _required("boot_id", sa.Text),
    _required("pid_namespace", sa.Text),
    _required("pid", sa.Integer),
    _required("started", sa.BigInteger),
    _required("slots", sa.Integer),
    _required("lease_s", sa.Double),
    sa.Column("resources", Json),
    sa.Column("request", sa.Text),
    _required("version", sa.Text),
    _required("started_at", UtcDateTime),
    _required("seen_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Index("worker_study", "study_id"),
)

guard(worker, uuid=f"length({{uuid}}) IN (32, 36) AND {_HEX}")  # an own loop's uuid has no hyphens

bracket = sa.Table(
    "bracket",
    METADATA,
    _study_id(),
    _required("number", sa.Integer),
    _required("spec", Json),
    sa.PrimaryKeyConstraint("study_id", "number"),
)

rung = _table_with_id(
    "rung",
    _study_id(),
    _required("bracket", sa.Integer),
    _required("step", sa.BigInteger),
    _required("quantile", sa.Double),
    _required("n_entries", sa.BigInteger),
    _required("n_ranked", sa.BigInteger),
    _required("cut_rank", sa.BigInteger),
    sa.Column("cut_score", sa.Double),
    sa.Column("cut_trial_id", Id),
    sa.UniqueConstraint("study_id", "bracket", "step"),
)
"""
The quantile lies between two of the `n_ranked` entries that are not NaN. `cut_score` and
`cut_trial_id` name the worse of the two; `cut_rank` is its rank, counted from the worst entry (0).
"""

rung_entry = sa.Table(
    "rung_entry",
    METADATA,
    _required("rung_id", Id, autoincrement=False),
    _required("trial_id", Id, autoincrement=False),
    _required("attempt", sa.Integer),
    _required("step", sa.BigInteger),
    _required("value", Number),
    _required("score", sa.Double),
    _required("ranked", sa.Boolean),
    _required("ordinal", sa.BigInteger),
    _required("action", sa.Text),
    sa.Column("cutoff", sa.Double),
    _required("recorded_at", UtcDateTime),
    sa.PrimaryKeyConstraint("rung_id", "trial_id"),
    _partial(
        "rung_entry_rank", "rung_id", "score", "trial_id", where="ranked", sqlite_where="ranked = 1"
    ),
)
"""`ordinal` counts the rung's entries from 0 as they arrive. `score` was compared with `cutoff`."""

counter = sa.Table(
    "counter",
    METADATA,
    _study_id(),
    _required("shard", sa.Integer),
    *(_required(state.lower(), sa.BigInteger) for state in State),
    sa.PrimaryKeyConstraint("study_id", "shard"),
)
"""Trials per state; the count is the sum over a study's shards."""

event = _table_with_id(
    "event",
    _study_id(),
    sa.Column("trial_id", Id),
    sa.Column("attempt", sa.Integer),
    sa.Column("worker_id", Id),
    _required("kind", sa.Text),
    _required("actor", sa.Text),
    sa.Column("data", Json),
    sa.Column("token", sa.Text, unique=True),
    _required("at", UtcDateTime),
    sa.Index("event_study", "study_id", "id"),
)

note = _table_with_id(
    "note",
    _study_id(),
    sa.Column("trial_id", Id),
    _required("author", sa.Text),
    _required("text", sa.Text),
    _required("at", UtcDateTime),
)

tag = _table_with_id(
    "tag",
    _study_id(),
    sa.Column("trial_id", Id),
    _required("key", sa.Text),
    sa.Column("value", sa.Text),
    sa.Index("tag_study", "study_id", "trial_id", "key", unique=True),
)


def in_state(state: State) -> sa.ColumnElement[bool]:
    """Compare the state with a literal, so that the planner may use the state's partial index."""
    return trial.c.state == sa.literal_column(f"'{state}'", sa.Text)


def is_still(state: State) -> sa.ColumnElement[bool]:
    """
    Compare the state with a bound value, for a guard on a row that is found by its id.

    With a literal, a plan made for a small table would scan the partial index of the state: every
    report would read every running trial.
    """
    return trial.c.state == sa.bindparam(f"still_{state.lower()}", state, sa.Text)


BY_ID = trial.c.id + 0
"""
Sorts trials by id for locks. If a query sorted by `id` itself, SQLite without statistics would scan
the index on id, and so read all trials.
"""
