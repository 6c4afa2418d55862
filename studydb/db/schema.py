"""
The tables (one schema for PostgreSQL and SQLite), and expressions that queries share.

The tables of schedulers and searchers are in `studydb/db/decision_schema.py`.

Ids are never reused. Heartbeats and reports change no column that has an index, so that PostgreSQL
need not update the indexes (HOT). `result` and `rung_entry` have no foreign keys, because the fence
proves that the trial exists. A query can use a partial index only if the query contains the index's
condition with literals, not with binds.
"""

import sqlalchemy as sa

from studydb.db import decision_schema  # noqa: F401  its tables join METADATA
from studydb.db.checks import add_checks
from studydb.db.metadata import (
    HEX,
    METADATA,
    UUID,
    Id,
    one_of,
    partial_index,
    required,
    study_id_column,
    table_with_id,
)
from studydb.db.types import Json, Number, UtcDateTime
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.states import FINAL, Mode, Origin, Reason, State, Status
from studydb.domain.trainable import TrainableForm, TrainableRole

NOT_SUPERSEDED = 2**62
"""The value of `attempt.live_through` until a later attempt of the trial reports."""

study = table_with_id(
    "study",
    required("uuid", sa.Text, unique=True),
    required("name", sa.Text, unique=True),
    required("status", sa.Text),
    required("metric", sa.Text),
    required("mode", sa.Text),
    required("seed", sa.BigInteger),
    required("space_version", sa.Integer),
    required("scheduler", Json),
    sa.Column("searcher", Json),
    required("rules", Json),
    sa.Column("num_trials", sa.BigInteger),
    sa.Column("num_draws", sa.BigInteger),
    sa.Column("max_concurrent", sa.Integer),
    required("max_failures", sa.Integer),
    required("max_losses", sa.Integer),
    sa.Column("checkpoints", sa.Text),
    sa.Column("settings", Json),
    required("next_number", sa.BigInteger, server_default="0"),
    required("next_draw", sa.BigInteger, server_default="0"),
    required("n_counted", sa.BigInteger, server_default="0"),
    required("n_running", sa.Integer, server_default="0"),
    sa.Column("created_by", sa.Text),
    required("created_at", UtcDateTime),
    sa.Column("points", Json),
    sa.Column("paused_by", sa.Text),
    sa.Column("pause_reason", sa.Text),
    sa.Column("objectives", Json),
    sa.Column("proposer_token", sa.Text),
    sa.Column("proposer_worker_id", Id),
    sa.Column("proposer_expires_at", UtcDateTime),
    sa.Column("best_values", Json),
    sa.Column("started_at", UtcDateTime),
    sa.Column("stopped_at_once", sa.Boolean),
    sa.Column("checkpoint_bytes", sa.BigInteger),
    sa.Column("deleting_at", UtcDateTime),
)
"""
`n_counted` is compared with `num_trials`, and `n_running` with `max_concurrent`; without
`max_concurrent`, `n_running` is not updated. `points` is used only by workers of an older version,
which had no table `proposal`; a later migration will drop `points`. `paused_by` says who or what
has paused the study ('person', 'guard', …); it is 'limit' if a limit or a stop rule has stopped the
study. `proposer_token` names the process that fits the searcher's model; the lease of this process
lasts until `proposer_expires_at` (see `store/proposer.py`). `best_values` has, for each rule that
can stop the study (`Plateau`), the best values so far. `started_at` is the time when the study's
first worker or own loop started. `stopped_at_once` says that the study was stopped without time for
its trials to save. `checkpoint_bytes` is the sum of the sizes of the kept checkpoints; NULL, and
not counted, if the study has no quota. While `deleting_at` is set, no trial of another study may
begin from a checkpoint of this study.
Not used yet: `objectives`, the metrics and modes of a study that has several metrics.
"""

add_checks(
    study,
    **one_of("status", [Status.RUNNING, Status.PAUSED, Status.STOPPED]),
    **one_of("mode", Mode),
    uuid=UUID,
)

search_space = sa.Table(
    "search_space",
    METADATA,
    study_id_column(),
    required("version", sa.Integer),
    required("space", Json),
    required("created_at", UtcDateTime),
    sa.PrimaryKeyConstraint("study_id", "version"),
)

trainable = table_with_id(
    "trainable",
    required("uuid", sa.Text, unique=True),
    study_id_column(),
    required("kind", sa.Text),
    required("name", sa.Text),
    required("workdir", sa.Text),
    required("python_version", sa.Text),
    sa.Column("source", sa.LargeBinary),
    required("created_at", UtcDateTime),
    required("role", sa.Text, server_default=TrainableRole.TRAINABLE),
    required("form", sa.Text, server_default=TrainableForm.FUNCTION),
)
"""
`kind` says how a worker finds the code, `role` what the study uses it for, and `form` whether it is
a function, a class or a command.
"""

add_checks(trainable, uuid=UUID, **one_of("role", TrainableRole))

signature = sa.Table(
    "signature",
    METADATA,
    required("trainable_id", Id, sa.ForeignKey("trainable.id")),
    required("key_id", sa.Text),
    required("mac", sa.Text),
    sa.PrimaryKeyConstraint("trainable_id", "key_id"),
)

_PENDING, _RUNNING = f"state = '{State.PENDING}'", f"state = '{State.RUNNING}'"
_FINAL = ", ".join(f"'{state}'" for state in sorted(FINAL))


trial = table_with_id(
    "trial",
    required("uuid", sa.Text, unique=True),
    study_id_column(),
    required("number", sa.BigInteger),
    sa.Column("name", sa.Text),
    required("state", sa.Text),
    sa.Column("reason", sa.Text),
    required("params", Json),
    required("params_hash", sa.Text),
    required("space_version", sa.Integer),
    required("origin", sa.Text),
    sa.Column("parent_id", Id),
    sa.Column("draw", sa.BigInteger),
    required("counted", sa.Boolean),
    required("priority", sa.Integer),
    required("ready", sa.Boolean),
    sa.Column("ready_at", UtcDateTime),
    required("resource_class", sa.Text),
    sa.Column("resources", Json),
    required("bracket", sa.Integer),
    sa.Column("request", sa.Text),
    sa.Column("verdict", sa.Text),
    sa.Column("verdict_reason", sa.Text),
    sa.Column("verdict_by", sa.Text),
    sa.Column("paused_by", sa.Text),
    required("attempt", sa.Integer),
    required("failures", sa.Integer),
    required("losses", sa.Integer),
    sa.Column("token", sa.Text),
    required("flush_no", sa.Integer),
    sa.Column("worker_id", Id),
    sa.Column("lease_s", sa.Double),
    sa.Column("lease_expires_at", UtcDateTime),
    sa.Column("suspect_at", UtcDateTime),
    sa.Column("checkpoint_id", Id),
    required("checkpoint_step", sa.BigInteger),
    required("n_results", sa.BigInteger),
    sa.Column("last_step", sa.BigInteger),
    sa.Column("last_value", Number),
    sa.Column("best_value", Number),
    sa.Column("best_step", sa.BigInteger),
    sa.Column("best_score", sa.Double),
    sa.Column("rank_score", sa.Double),
    sa.Column("time_total_s", sa.Double),
    sa.Column("metric_summary", Json),
    sa.Column("invalidated_at", UtcDateTime),
    required("created_at", UtcDateTime),
    sa.Column("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("config", Json),
    sa.Column("source_checkpoint_id", Id),
    sa.Column("generation", sa.Integer),
    sa.Column("replicate_of", Id),
    sa.Column("is_unique", sa.Boolean),
    sa.Column("feasible", sa.Boolean),
    sa.Column("cost", sa.Double),
    sa.Column("running_s", sa.Double),
    sa.Column("running_until", UtcDateTime),
    sa.Column("changed", Json),
    sa.Column("request_now", sa.Boolean),
    sa.Column("has_tags", sa.Boolean),
    sa.UniqueConstraint("study_id", "number"),
    sa.UniqueConstraint("study_id", "draw"),
    partial_index(
        "trial_claim",
        "study_id",
        "resource_class",
        "priority",
        "number",
        where=f"{_PENDING} AND ready",
        sqlite_where=f"{_PENDING} AND ready = 1",
    ),
    partial_index(
        "trial_backoff",
        "study_id",
        "ready_at",
        where=f"{_PENDING} AND NOT ready",
        sqlite_where=f"{_PENDING} AND ready = 0",
    ),
    partial_index("trial_running", "study_id", where=_RUNNING),
    partial_index("trial_paused", "study_id", where="state = 'PAUSED'"),
    partial_index(
        "trial_paused_by_study", "study_id", where="state = 'PAUSED' AND paused_by = 'study'"
    ),
    partial_index("trial_name", "study_id", "name", where="name IS NOT NULL", unique=True),
    partial_index("trial_rank", "study_id", "rank_score", "number", where="rank_score IS NOT NULL"),
    partial_index("trial_parent", "study_id", "parent_id", where="parent_id IS NOT NULL"),
    partial_index("trial_invalidated", "study_id", "number", where="invalidated_at IS NOT NULL"),
    sa.Index("trial_params", "study_id", "params_hash"),
    partial_index(
        "trial_unique_params",
        "study_id",
        "params_hash",
        where="is_unique",
        sqlite_where="is_unique = 1",
        unique=True,
    ),
)
"""
`resource_class` names what the trial asks for; see `resource_class` in decision_schema.py. If the
scheduler changes what the trial asks for while an attempt runs, `resources` keeps the number of
this attempt and the resource class that the attempt holds. Trials with a lower `priority` run
first.

Reports do not change `rank_score`, so they update no index. The end of an attempt sets `rank_score`
to `best_score`, or to NULL if the trial has no rank; an invalidation sets it to NULL, too. One
look-up in the index `trial_rank` finds the best of the trials that are not RUNNING. `flush_no` is
the number of the attempt's last stored flush with results, or 0. The attempt's end writes
`attempt.flush_no`; a later flush of the attempt whose number is not higher is a duplicate request.

`config` is what the next attempt receives. A trial that an earlier studydb made has no `config`
until it is claimed. `changed` holds, by path, the values of `config` that a person has changed.
`is_unique` says that no other trial with `is_unique` may have the same params.

`checkpoint_id` is the checkpoint that the next attempt restores; it may belong to another trial.
`checkpoint_step` is the highest step that was saved, or at first the step of the checkpoint from
which the trial began. `parent_id` is the trial of which this trial is a clone.
`source_checkpoint_id` is the checkpoint of another trial from which a clone or an enqueued trial
begins.

`has_tags` is true if the trial has or has had tags; if it is NULL, a claim reads no tags.
`request_now` says that a request to stop is carried out without the worker's grace. `running_s` is
the running time of all attempts up to `running_until`; both are written only if the study limits
the running time of each trial or of all trials together.

Not used yet: `generation`, the number of intervals that a member of a population has run;
`replicate_of`, the trial that this trial repeats; `feasible`, whether the trial keeps the study's
constraints; `cost`.
"""

add_checks(
    trial,
    **one_of("state", State),
    **one_of("reason", Reason),
    **one_of("origin", Origin),
    **one_of("verdict", [Action.STOP, Action.PAUSE, Action.EXPLOIT]),
    **one_of("request", [Action.STOP, Action.PAUSE]),
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
    required("trial_id", Id, sa.ForeignKey("trial.id")),
    required("attempt", sa.Integer),
    required("study_id", Id),
    required("token", sa.Text, unique=True),
    sa.Column("worker_id", Id),
    required("config", Json),
    required("start_step", sa.BigInteger),
    required("live_through", sa.BigInteger),
    required("flush_no", sa.Integer),
    sa.Column("restored_id", Id),
    sa.Column("source_trial_id", Id),
    required("started_at", UtcDateTime),
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
    sa.Column("pid", sa.Integer),
    sa.Column("devices", Json),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("cost", sa.Double),
    sa.PrimaryKeyConstraint("trial_id", "attempt"),
)
"""
`restored_id` is the checkpoint that the claim found; if it is corrupt, the attempt restores an
older checkpoint. `start_step` is the first step that the attempt has reported; before the first
report, it is the step after the step of the restored checkpoint (1 without a checkpoint). Results
of steps after `live_through` are superseded. `start` is "warm", "fresh" or "reused", and `start_s`
the seconds from the claim to the first line of the trainable.

Not used yet: `source_trial_id`, `pid`, `exit_code`, `signal`, `cost`.
"""

add_checks(attempt, **one_of("reason", Reason))

result = sa.Table(
    "result",
    METADATA,
    required("study_id", Id, autoincrement=False),
    required("trial_id", Id, autoincrement=False),
    required("attempt", sa.Integer, autoincrement=False),
    required("step", sa.BigInteger, autoincrement=False),
    required("value", Number),
    sa.Column("metrics", Json),
    sa.Column("time_total_s", sa.Double),
    required("reported_at", UtcDateTime),
    sa.PrimaryKeyConstraint("study_id", "trial_id", "attempt", "step"),
    sqlite_with_rowid=False,
)

checkpoint = table_with_id(
    "checkpoint",
    required("uuid", sa.Text, unique=True),
    required("study_id", Id),
    required("trial_id", Id, sa.ForeignKey("trial.id"), index=True),
    required("attempt", sa.Integer),
    required("step", sa.BigInteger),
    required("kind", sa.Text),
    required("url", sa.Text),
    required("digest", sa.Text),
    required("size_bytes", sa.BigInteger),
    sa.Column("key_id", sa.Text),
    sa.Column("mac", sa.Text),
    sa.Column("data", sa.LargeBinary),
    required("pins", sa.Integer),
    required("created_at", UtcDateTime),
    sa.Column("corrupt_at", UtcDateTime),
    sa.Column("removed_at", UtcDateTime),
    partial_index("checkpoint_kept", "study_id", "id", where="removed_at IS NULL AND study_id > 0"),
)
"""
Once `removed_at` is set, the checkpoint is not restored. Its bytes are deleted, unless `corrupt_at`
is set, too. Neither `keep` nor the quota removes a checkpoint with `pins` above 0.

All rows fulfil the condition `study_id > 0` of the index `checkpoint_kept`. Only queries of all
checkpoints of a study contain this condition, so PostgreSQL uses the index for these queries alone.
If the index had no such condition, PostgreSQL would also read the whole index for the checkpoints
of one trial.
"""

add_checks(checkpoint, uuid=UUID)

pin = table_with_id(
    "pin",
    required("study_id", Id),
    required("checkpoint_id", Id, sa.ForeignKey("checkpoint.id"), index=True),
    sa.Column("trial_id", Id),
    required("reason", sa.Text),
    required("actor", sa.Text),
    sa.Column("token", sa.Text, unique=True),
    required("at", UtcDateTime),
    sa.Index("pin_trial", "trial_id"),
)
"""
Why a checkpoint is kept, and for which trial (NULL for a person's pin); `checkpoint.pins` counts
the pins.
"""

upload = table_with_id(
    "upload",
    required("uuid", sa.Text, unique=True),
    required("study_id", Id, index=True),
    required("trial_id", Id),
    required("attempt", sa.Integer),
    required("url", sa.Text),
    required("started_at", UtcDateTime),
)
"""
The uuid of a checkpoint whose bytes may be in a store, although the checkpoint has no row.
The upload's row is inserted before the first byte is written. The transaction that inserts the
checkpoint's row deletes the upload's row. If no process will finish the upload, the bytes are
deleted first, and then the upload's row.
"""

add_checks(upload, uuid=UUID)

log_chunk = sa.Table(
    "log_chunk",
    METADATA,
    required("trial_id", Id, autoincrement=False),
    required("attempt", sa.Integer, autoincrement=False),
    required("stream", sa.Text),
    required("position", sa.BigInteger, autoincrement=False),
    required("study_id", Id),
    required("data", sa.LargeBinary),
    required("at", UtcDateTime),
    sa.PrimaryKeyConstraint("trial_id", "attempt", "stream", "position"),
)
"""Not used yet: a piece of an attempt's output; `position` is the offset of its first byte."""

worker = table_with_id(
    "worker",
    required("uuid", sa.Text, unique=True),
    study_id_column(),
    required("host", sa.Text),
    required("boot_id", sa.Text),
    required("pid_namespace", sa.Text),
    required("pid", sa.Integer),
    required("started", sa.BigInteger),
    required("slots", sa.Integer),
    required("lease_s", sa.Double),
    sa.Column("resources", Json),
    sa.Column("request", sa.Text),
    required("version", sa.Text),
    required("started_at", UtcDateTime),
    required("seen_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("reserved_for", sa.BigInteger),
    sa.Index("worker_study", "study_id"),
)
"""
`resources` is what the worker offers; NULL for an own loop without a capacity, because every
request fits such a loop. `reserved_for` is the number of a trial that is too large to start now,
and for which the worker keeps its resources free: until that trial has started somewhere, the
worker starts no trial that would delay it.
"""

# The uuid of an own loop has no hyphens.
add_checks(worker, uuid=f"length({{uuid}}) IN (32, 36) AND {HEX}")

counter = sa.Table(
    "counter",
    METADATA,
    study_id_column(),
    required("shard", sa.Integer),
    *(required(state.lower(), sa.BigInteger) for state in State),
    required("cost", sa.Double, server_default="0"),
    required("time_s", sa.Double, server_default="0"),
    required("steps", sa.BigInteger, server_default="0"),
    sa.PrimaryKeyConstraint("study_id", "shard"),
)
"""
The sums over a study's shards are the number of its trials in each state, and what the trials have
spent: cost, running time and results. Spending is counted only if the study limits it.
"""

event = table_with_id(
    "event",
    study_id_column(),
    sa.Column("trial_id", Id),
    sa.Column("attempt", sa.Integer),
    sa.Column("worker_id", Id),
    required("kind", sa.Text),
    required("actor", sa.Text),
    sa.Column("data", Json),
    sa.Column("token", sa.Text, unique=True),
    required("at", UtcDateTime),
    sa.Index("event_study", "study_id", "id"),
)

note = table_with_id(
    "note",
    study_id_column(),
    sa.Column("trial_id", Id),
    required("author", sa.Text),
    required("text", sa.Text),
    required("at", UtcDateTime),
    sa.Index("note_trial", "study_id", "trial_id"),
)

tag = table_with_id(
    "tag",
    study_id_column(),
    sa.Column("trial_id", Id),
    required("key", sa.Text),
    sa.Column("value", sa.Text),
    sa.Index("tag_study", "study_id", "trial_id", "key", unique=True),
    sa.Index("tag_key", "study_id", "key", "trial_id"),
)
"""
`key` is the text of a trial's tag. Two things are not used yet: the column `value`, and rows
without `trial_id`, which are meant for tags of studies.
"""


TABLES = METADATA.sorted_tables
"""All tables, parents before children."""


def in_state(state: State) -> sa.ColumnElement[bool]:
    """Compare the state with a literal, so that the planner may use the state's partial index."""
    return trial.c.state == sa.literal_column(f"'{state}'", sa.Text)


PAUSED_BY_STUDY = sa.and_(
    in_state(State.PAUSED), trial.c.paused_by == sa.literal_column(f"'{DecidedBy.STUDY}'", sa.Text)
)
"""True if a trial was paused with its study; the condition has literals as in `in_state`."""


def is_still(state: State) -> sa.ColumnElement[bool]:
    """
    Compare the state with a bound value, in a condition on a row that is found by its id.

    With a literal, a plan made for a small table would scan the partial index of the state. Every
    report would then read every running trial.
    """
    return trial.c.state == sa.bindparam(f"still_{state.lower()}", state, sa.Text)


def by_id(table: sa.Table) -> sa.ColumnElement[int]:
    """
    Return an expression that sorts rows by id, for locks and for lists.

    The `+ 0` keeps the planner from scanning the index on `id`, which would read the whole table.
    SQLite without statistics would choose that scan.
    """
    return table.c.id + 0


BY_ID = by_id(trial)
"""Sorts trials by id."""
