"""Make the tables, indexes and views of the study store."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0001"
down_revision = None

REASONS = (
    "reason IN ('COMPLETED', 'EARLY_STOPPED', 'RULE_STOPPED', 'CANCELLED', 'FAILED', 'LOST', "
    "'PREEMPTED', 'TIMED_OUT', 'EXPLOITED', 'PAUSED')"
)
METADATA = sa.MetaData()
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
MOMENT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")

sa.Table(
    "result",
    METADATA,
    sa.Column("study_id", ID, autoincrement=False, nullable=False),
    sa.Column("trial_id", ID, autoincrement=False, nullable=False),
    sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
    sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column("value", sa.Double(), nullable=False),
    sa.Column("metrics", JSON),
    sa.Column("time_total_s", sa.Double()),
    sa.Column("reported_at", MOMENT, nullable=False),
    sa.PrimaryKeyConstraint("study_id", "trial_id", "attempt", "step", name="result_pkey"),
    sqlite_with_rowid=False,
)

sa.Table(
    "rung_entry",
    METADATA,
    sa.Column("rung_id", ID, autoincrement=False, nullable=False),
    sa.Column("trial_id", ID, autoincrement=False, nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("step", sa.BigInteger(), nullable=False),
    sa.Column("value", sa.Double(), nullable=False),
    sa.Column("score", sa.Double(), nullable=False),
    sa.Column("ranked", sa.Boolean(), nullable=False),
    sa.Column("ordinal", sa.BigInteger(), nullable=False),
    sa.Column("action", sa.Text(), nullable=False),
    sa.Column("cutoff", sa.Double()),
    sa.Column("recorded_at", MOMENT, nullable=False),
    sa.PrimaryKeyConstraint("rung_id", "trial_id", name="rung_entry_pkey"),
    sa.Index(
        "rung_entry_rank",
        "rung_id",
        "score",
        "trial_id",
        postgresql_where=sa.text("ranked"),
        sqlite_where=sa.text("ranked = 1"),
    ),
)

sa.Table(
    "study",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("uuid", sa.Text(), nullable=False),
    sa.Column("name", sa.Text(), nullable=False),
    sa.Column("status", sa.Text(), nullable=False),
    sa.Column("metric", sa.Text(), nullable=False),
    sa.Column("mode", sa.Text(), nullable=False),
    sa.Column("seed", sa.BigInteger(), nullable=False),
    sa.Column("space_version", sa.Integer(), nullable=False),
    sa.Column("scheduler", JSON, nullable=False),
    sa.Column("searcher", JSON),
    sa.Column("rules", JSON, nullable=False),
    sa.Column("num_trials", sa.BigInteger()),
    sa.Column("num_draws", sa.BigInteger()),
    sa.Column("max_concurrent", sa.Integer()),
    sa.Column("max_failures", sa.Integer(), nullable=False),
    sa.Column("max_losses", sa.Integer(), nullable=False),
    sa.Column("checkpoints", sa.Text()),
    sa.Column("settings", JSON),
    sa.Column("next_number", sa.BigInteger(), server_default="0", nullable=False),
    sa.Column("next_draw", sa.BigInteger(), server_default="0", nullable=False),
    sa.Column("n_counted", sa.BigInteger(), server_default="0", nullable=False),
    sa.Column("n_running", sa.Integer(), server_default="0", nullable=False),
    sa.Column("created_by", sa.Text()),
    sa.Column("created_at", MOMENT, nullable=False),
    sa.CheckConstraint("mode IN ('min', 'max')", name="study_mode_check"),
    sa.CheckConstraint("status IN ('RUNNING', 'PAUSED', 'STOPPED')", name="study_status_check"),
    sa.PrimaryKeyConstraint("id", name="study_pkey"),
    sa.UniqueConstraint("name", name="study_name_key"),
    sa.UniqueConstraint("uuid", name="study_uuid_key"),
    sqlite_autoincrement=True,
)

sa.Table(
    "bracket",
    METADATA,
    sa.Column("study_id", ID, nullable=False),
    sa.Column("number", sa.Integer(), nullable=False),
    sa.Column("spec", JSON, nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="bracket_study_id_fkey"),
    sa.PrimaryKeyConstraint("study_id", "number", name="bracket_pkey"),
)

sa.Table(
    "counter",
    METADATA,
    sa.Column("study_id", ID, nullable=False),
    sa.Column("shard", sa.Integer(), nullable=False),
    sa.Column("pending", sa.BigInteger(), nullable=False),
    sa.Column("running", sa.BigInteger(), nullable=False),
    sa.Column("paused", sa.BigInteger(), nullable=False),
    sa.Column("terminated", sa.BigInteger(), nullable=False),
    sa.Column("error", sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="counter_study_id_fkey"),
    sa.PrimaryKeyConstraint("study_id", "shard", name="counter_pkey"),
)

sa.Table(
    "event",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("trial_id", ID),
    sa.Column("attempt", sa.Integer()),
    sa.Column("worker_id", ID),
    sa.Column("kind", sa.Text(), nullable=False),
    sa.Column("actor", sa.Text(), nullable=False),
    sa.Column("data", JSON),
    sa.Column("token", sa.Text()),
    sa.Column("at", MOMENT, nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="event_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="event_pkey"),
    sa.UniqueConstraint("token", name="event_token_key"),
    sa.Index("event_study", "study_id", "id"),
    sqlite_autoincrement=True,
)

sa.Table(
    "note",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("trial_id", ID),
    sa.Column("author", sa.Text(), nullable=False),
    sa.Column("text", sa.Text(), nullable=False),
    sa.Column("at", MOMENT, nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="note_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="note_pkey"),
    sqlite_autoincrement=True,
)

sa.Table(
    "rung",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("bracket", sa.Integer(), nullable=False),
    sa.Column("step", sa.BigInteger(), nullable=False),
    sa.Column("quantile", sa.Double(), nullable=False),
    sa.Column("n_entries", sa.BigInteger(), nullable=False),
    sa.Column("n_ranked", sa.BigInteger(), nullable=False),
    sa.Column("cut_rank", sa.BigInteger(), nullable=False),
    sa.Column("cut_score", sa.Double()),
    sa.Column("cut_trial_id", ID),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="rung_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="rung_pkey"),
    sa.UniqueConstraint("study_id", "bracket", "step", name="rung_study_id_bracket_step_key"),
    sqlite_autoincrement=True,
)

sa.Table(
    "search_space",
    METADATA,
    sa.Column("study_id", ID, nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("space", JSON, nullable=False),
    sa.Column("created_at", MOMENT, nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="search_space_study_id_fkey"),
    sa.PrimaryKeyConstraint("study_id", "version", name="search_space_pkey"),
)

sa.Table(
    "tag",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("trial_id", ID),
    sa.Column("key", sa.Text(), nullable=False),
    sa.Column("value", sa.Text()),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="tag_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="tag_pkey"),
    sa.Index("tag_study", "study_id", "trial_id", "key", unique=True),
    sqlite_autoincrement=True,
)

sa.Table(
    "trainable",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("uuid", sa.Text(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("kind", sa.Text(), nullable=False),
    sa.Column("name", sa.Text(), nullable=False),
    sa.Column("workdir", sa.Text(), nullable=False),
    sa.Column("python_version", sa.Text(), nullable=False),
    sa.Column("source", sa.LargeBinary()),
    sa.Column("created_at", MOMENT, nullable=False),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="trainable_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="trainable_pkey"),
    sa.UniqueConstraint("uuid", name="trainable_uuid_key"),
    sqlite_autoincrement=True,
)

sa.Table(
    "trial",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("uuid", sa.Text(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("number", sa.BigInteger(), nullable=False),
    sa.Column("name", sa.Text()),
    sa.Column("state", sa.Text(), nullable=False),
    sa.Column("reason", sa.Text()),
    sa.Column("params", JSON, nullable=False),
    sa.Column("params_hash", sa.Text(), nullable=False),
    sa.Column("space_version", sa.Integer(), nullable=False),
    sa.Column("origin", sa.Text(), nullable=False),
    sa.Column("parent_id", ID),
    sa.Column("draw", sa.BigInteger()),
    sa.Column("counted", sa.Boolean(), nullable=False),
    sa.Column("priority", sa.Integer(), nullable=False),
    sa.Column("ready", sa.Boolean(), nullable=False),
    sa.Column("ready_at", MOMENT),
    sa.Column("resource_class", sa.Text(), nullable=False),
    sa.Column("resources", JSON),
    sa.Column("bracket", sa.Integer(), nullable=False),
    sa.Column("request", sa.Text()),
    sa.Column("verdict", sa.Text()),
    sa.Column("verdict_reason", sa.Text()),
    sa.Column("verdict_by", sa.Text()),
    sa.Column("paused_by", sa.Text()),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("failures", sa.Integer(), nullable=False),
    sa.Column("losses", sa.Integer(), nullable=False),
    sa.Column("token", sa.Text()),
    sa.Column("flush_no", sa.Integer(), nullable=False),
    sa.Column("worker_id", ID),
    sa.Column("lease_s", sa.Double()),
    sa.Column("lease_expires_at", MOMENT),
    sa.Column("suspect_at", MOMENT),
    sa.Column("checkpoint_id", ID),
    sa.Column("checkpoint_step", sa.BigInteger(), nullable=False),
    sa.Column("n_results", sa.BigInteger(), nullable=False),
    sa.Column("last_step", sa.BigInteger()),
    sa.Column("last_value", sa.Double()),
    sa.Column("best_value", sa.Double()),
    sa.Column("best_step", sa.BigInteger()),
    sa.Column("best_score", sa.Double()),
    sa.Column("rank_score", sa.Double()),
    sa.Column("time_total_s", sa.Double()),
    sa.Column("metric_summary", JSON),
    sa.Column("invalidated_at", MOMENT),
    sa.Column("created_at", MOMENT, nullable=False),
    sa.Column("started_at", MOMENT),
    sa.Column("ended_at", MOMENT),
    sa.CheckConstraint("(state = 'PAUSED') = (paused_by IS NOT NULL)", name="trial_paused_check"),
    sa.CheckConstraint("(state = 'RUNNING') = (token IS NOT NULL)", name="trial_lease_check"),
    sa.CheckConstraint(
        "(state IN ('ERROR', 'TERMINATED')) = (ended_at IS NOT NULL)", name="trial_ended_check"
    ),
    sa.CheckConstraint(
        "origin IN ('searcher', 'enqueued', 'grid', 'clone', 'replicate')",
        name="trial_origin_check",
    ),
    sa.CheckConstraint(
        REASONS,
        name="trial_reason_check",
    ),
    sa.CheckConstraint("request IN ('STOP', 'PAUSE')", name="trial_request_check"),
    sa.CheckConstraint(
        "state IN ('PENDING', 'RUNNING', 'PAUSED', 'TERMINATED', 'ERROR')", name="trial_state_check"
    ),
    sa.CheckConstraint("verdict IN ('STOP', 'PAUSE', 'EXPLOIT')", name="trial_verdict_check"),
    sa.CheckConstraint("verdict IS NULL OR state = 'RUNNING'", name="trial_verdict_runs_check"),
    sa.CheckConstraint("(ended_at IS NULL) = (reason IS NULL)", name="trial_why_check"),
    sa.CheckConstraint(
        "(verdict IS NULL) = (verdict_reason IS NULL)", name="trial_verdict_why_check"
    ),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="trial_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="trial_pkey"),
    sa.UniqueConstraint("study_id", "draw", name="trial_study_id_draw_key"),
    sa.UniqueConstraint("study_id", "number", name="trial_study_id_number_key"),
    sa.UniqueConstraint("uuid", name="trial_uuid_key"),
    sa.Index(
        "trial_backoff",
        "study_id",
        "ready_at",
        postgresql_where=sa.text("state = 'PENDING' AND NOT ready"),
        sqlite_where=sa.text("state = 'PENDING' AND ready = 0"),
    ),
    sa.Index(
        "trial_claim",
        "study_id",
        "resource_class",
        "priority",
        "number",
        postgresql_where=sa.text("state = 'PENDING' AND ready"),
        sqlite_where=sa.text("state = 'PENDING' AND ready = 1"),
    ),
    sa.Index("trial_params", "study_id", "params_hash"),
    sa.Index(
        "trial_paused",
        "study_id",
        postgresql_where=sa.text("state = 'PAUSED'"),
        sqlite_where=sa.text("state = 'PAUSED'"),
    ),
    sa.Index(
        "trial_rank",
        "study_id",
        "rank_score",
        "number",
        postgresql_where=sa.text("rank_score IS NOT NULL"),
        sqlite_where=sa.text("rank_score IS NOT NULL"),
    ),
    sa.Index(
        "trial_running",
        "study_id",
        postgresql_where=sa.text("state = 'RUNNING'"),
        sqlite_where=sa.text("state = 'RUNNING'"),
    ),
    sqlite_autoincrement=True,
)

sa.Table(
    "worker",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("uuid", sa.Text(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("host", sa.Text(), nullable=False),
    sa.Column("boot_id", sa.Text(), nullable=False),
    sa.Column("pid_namespace", sa.Text(), nullable=False),
    sa.Column("pid", sa.Integer(), nullable=False),
    sa.Column("started", sa.BigInteger(), nullable=False),
    sa.Column("slots", sa.Integer(), nullable=False),
    sa.Column("lease_s", sa.Double(), nullable=False),
    sa.Column("resources", JSON),
    sa.Column("request", sa.Text()),
    sa.Column("version", sa.Text(), nullable=False),
    sa.Column("started_at", MOMENT, nullable=False),
    sa.Column("seen_at", MOMENT, nullable=False),
    sa.Column("ended_at", MOMENT),
    sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="worker_study_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="worker_pkey"),
    sa.UniqueConstraint("uuid", name="worker_uuid_key"),
    sa.Index("worker_study", "study_id"),
    sqlite_autoincrement=True,
)

sa.Table(
    "attempt",
    METADATA,
    sa.Column("trial_id", ID, nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("token", sa.Text(), nullable=False),
    sa.Column("worker_id", ID),
    sa.Column("config", JSON, nullable=False),
    sa.Column("start_step", sa.BigInteger(), nullable=False),
    sa.Column("live_through", sa.BigInteger(), nullable=False),
    sa.Column("flush_no", sa.Integer(), nullable=False),
    sa.Column("restored_id", ID),
    sa.Column("source_trial_id", ID),
    sa.Column("started_at", MOMENT, nullable=False),
    sa.Column("ended_at", MOMENT),
    sa.Column("reason", sa.Text()),
    sa.Column("verdict", sa.Text()),
    sa.Column("verdict_reason", sa.Text()),
    sa.Column("verdict_by", sa.Text()),
    sa.Column("error_type", sa.Text()),
    sa.Column("error_message", sa.Text()),
    sa.Column("traceback", sa.Text()),
    sa.Column("log_dir", sa.Text()),
    sa.Column("log_tail", sa.Text()),
    sa.Column("provenance", JSON),
    sa.CheckConstraint(
        REASONS,
        name="attempt_reason_check",
    ),
    sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="attempt_trial_id_fkey"),
    sa.PrimaryKeyConstraint("trial_id", "attempt", name="attempt_pkey"),
    sa.UniqueConstraint("token", name="attempt_token_key"),
)

sa.Table(
    "checkpoint",
    METADATA,
    sa.Column("id", ID, sa.Identity(), nullable=False),
    sa.Column("uuid", sa.Text(), nullable=False),
    sa.Column("study_id", ID, nullable=False),
    sa.Column("trial_id", ID, nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("step", sa.BigInteger(), nullable=False),
    sa.Column("kind", sa.Text(), nullable=False),
    sa.Column("url", sa.Text(), nullable=False),
    sa.Column("digest", sa.Text(), nullable=False),
    sa.Column("size_bytes", sa.BigInteger(), nullable=False),
    sa.Column("key_id", sa.Text()),
    sa.Column("mac", sa.Text()),
    sa.Column("data", sa.LargeBinary()),
    sa.Column("pins", sa.Integer(), nullable=False),
    sa.Column("created_at", MOMENT, nullable=False),
    sa.Column("corrupt_at", MOMENT),
    sa.Column("removed_at", MOMENT),
    sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="checkpoint_trial_id_fkey"),
    sa.PrimaryKeyConstraint("id", name="checkpoint_pkey"),
    sa.UniqueConstraint("uuid", name="checkpoint_uuid_key"),
    sa.Index("ix_checkpoint_trial_id", "trial_id"),
    sqlite_autoincrement=True,
)

sa.Table(
    "signature",
    METADATA,
    sa.Column("trainable_id", ID, nullable=False),
    sa.Column("key_id", sa.Text(), nullable=False),
    sa.Column("mac", sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(["trainable_id"], ["trainable.id"], name="signature_trainable_id_fkey"),
    sa.PrimaryKeyConstraint("trainable_id", "key_id", name="signature_pkey"),
)

# `fillfactor` leaves room on a page for new versions of its rows (HOT). A scale factor below the
# default of 0.2 makes autovacuum run more often on large tables; a threshold above the default of
# 50 makes it run less often on small tables, whose rows change all the time.
STORAGE = {
    "trial": "fillfactor=70, autovacuum_vacuum_scale_factor=0.02",
    "attempt": "fillfactor=80, autovacuum_vacuum_scale_factor=0.05",
    "study": "fillfactor=20, autovacuum_vacuum_threshold=200",
    "counter": "fillfactor=20, autovacuum_vacuum_threshold=200",
    "rung": "fillfactor=20, autovacuum_vacuum_threshold=200",
    "worker": "fillfactor=50, autovacuum_vacuum_threshold=200",
    "result": "autovacuum_vacuum_insert_scale_factor=0.05",
}

# The parts of the views' SQL that differ between PostgreSQL and SQLite.
SPELLING = {
    "postgresql": {
        "metrics": "coalesce(r.metrics, '{}'::jsonb) || jsonb_build_object(s.metric, r.value)",
        "seconds": "extract(epoch FROM coalesce(a.ended_at, clock_timestamp()) - a.started_at)",
        "double": "double precision",
    },
    "sqlite": {
        "metrics": "json_set(coalesce(r.metrics, '{}'), '$.\"' || s.metric || '\"',"
        " CASE WHEN typeof(r.value) = 'text' THEN r.value"
        " ELSE json(printf('%!.17g', r.value)) END)",
        "seconds": "86400.0 * (julianday(coalesce(a.ended_at, 'now')) - julianday(a.started_at))",
        "double": "real",
    },
}

VIEWS = {
    "v_study": """
        SELECT s.name AS study,
               CASE WHEN s.status = 'RUNNING' AND c.pending + c.running = 0
                         AND (s.n_counted >= s.num_trials OR s.next_draw >= s.num_draws)
                    THEN 'FINISHED' ELSE s.status END AS status,
               s.metric, s.mode, s.num_trials, s.max_concurrent,
               c.pending, c.running, c.paused, c.terminated, c.error, s.created_at
        FROM study s
        JOIN (SELECT study_id, CAST(sum(pending) AS bigint) AS pending,
                     CAST(sum(running) AS bigint) AS running,
                     CAST(sum(paused) AS bigint) AS paused,
                     CAST(sum(terminated) AS bigint) AS terminated,
                     CAST(sum(error) AS bigint) AS error
              FROM counter GROUP BY study_id) c ON c.study_id = s.id""",
    "v_trial": """
        SELECT s.name AS study, t.number, t.state, t.reason, t.params,
               t.last_value AS value, t.best_value, t.best_step, t.last_step,
               t.attempt, t.failures, t.losses, t.started_at, t.ended_at,
               (SELECT CAST(sum({seconds}) AS {double})
                FROM attempt a WHERE a.trial_id = t.id) AS duration_s
        FROM trial t JOIN study s ON s.id = t.study_id""",
    "v_result": """
        SELECT s.name AS study, t.number, r.step, r.value, {metrics} AS metrics,
               r.attempt, r.reported_at
        FROM result r
        JOIN attempt a ON a.trial_id = r.trial_id AND a.attempt = r.attempt
                      AND r.step <= a.live_through
        JOIN trial t ON t.id = r.trial_id
        JOIN study s ON s.id = r.study_id""",
    "v_attempt": """
        SELECT s.name AS study, t.number, a.attempt, a.reason, a.start_step,
               w.host, w.pid, w.uuid AS worker, a.started_at, a.ended_at,
               CAST({seconds} AS {double}) AS duration_s, a.error_type, a.error_message
        FROM attempt a
        JOIN trial t ON t.id = a.trial_id
        JOIN study s ON s.id = a.study_id
        LEFT JOIN worker w ON w.id = a.worker_id""",
    "v_checkpoint": """
        SELECT s.name AS study, t.number, c.attempt, c.step, c.kind, c.url, c.size_bytes,
               c.digest, c.created_at
        FROM checkpoint c
        JOIN trial t ON t.id = c.trial_id
        JOIN study s ON s.id = c.study_id
        WHERE c.removed_at IS NULL""",
    "v_worker": """
        SELECT w.uuid AS worker, s.name AS study, w.host, w.pid, w.slots,
               (SELECT count(*) FROM trial t
                WHERE t.study_id = w.study_id AND t.state = 'RUNNING' AND t.worker_id = w.id)
                   AS running,
               w.request, w.version, w.started_at, w.seen_at, w.ended_at
        FROM worker w JOIN study s ON s.id = w.study_id""",
}


def upgrade() -> None:
    connection = op.get_bind()
    METADATA.create_all(connection)
    for name, query in VIEWS.items():
        op.execute(
            sa.text(f"CREATE VIEW {name} AS {query.format(**spelling())}".replace(":", r"\:"))
        )
    if connection.dialect.name == "postgresql":
        for table, options in STORAGE.items():
            op.execute(f"ALTER TABLE {table} SET ({options})")
        op.execute("ANALYZE study, trial, attempt, rung_entry")


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    METADATA.drop_all(op.get_bind())


def spelling() -> dict[str, str]:
    return SPELLING[op.get_bind().dialect.name]
