"""Let triggers check PostgreSQL's rows: they pass over statements that set no checked column."""

from alembic import op

revision = "0006"
down_revision = "0005"

LOCK = "LOCK TABLE trial, attempt, study, trainable, checkpoint, worker"
"""In the order in which running workers lock: trials before studies."""

_REASONS = (
    "'COMPLETED', 'EARLY_STOPPED', 'RULE_STOPPED', 'CANCELLED', 'FAILED', 'LOST', 'PREEMPTED', "
    "'TIMED_OUT', 'EXPLOITED', 'PAUSED'"
)
_HEX = "ltrim({uuid}, '0123456789abcdef-') = ''"
_UUID = f"length({{uuid}}) = 36 AND {_HEX}"

COLUMNS = {
    "trial": {
        "state": "text",
        "reason": "text",
        "origin": "text",
        "verdict": "text",
        "request": "text",
        "token": "text",
        "verdict_reason": "text",
        "paused_by": "text",
        "ended_at": "timestamp with time zone",
        "uuid": "text",
    },
    "attempt": {"reason": "text"},
    "study": {"status": "text", "mode": "text", "uuid": "text"},
    "trainable": {"uuid": "text"},
    "checkpoint": {"uuid": "text"},
    "worker": {"uuid": "text"},
}
CHECKS = {
    "trial": {
        "state": "{state} IN ('PENDING', 'RUNNING', 'PAUSED', 'TERMINATED', 'ERROR')",
        "reason": f"{{reason}} IN ({_REASONS})",
        "origin": "{origin} IN ('searcher', 'enqueued', 'grid', 'clone', 'replicate')",
        "verdict": "{verdict} IN ('STOP', 'PAUSE', 'EXPLOIT')",
        "request": "{request} IN ('STOP', 'PAUSE')",
        "lease": "({state} = 'RUNNING') = ({token} IS NOT NULL)",
        "verdict_runs": "{verdict} IS NULL OR {state} = 'RUNNING'",
        "verdict_why": "({verdict} IS NULL) = ({verdict_reason} IS NULL)",
        "paused": "({state} = 'PAUSED') = ({paused_by} IS NOT NULL)",
        "ended": "({state} IN ('ERROR', 'TERMINATED')) = ({ended_at} IS NOT NULL)",
        "why": "({ended_at} IS NULL) = ({reason} IS NULL)",
        "uuid": _UUID,
    },
    "attempt": {"reason": f"{{reason}} IN ({_REASONS})"},
    "study": {
        "status": "{status} IN ('RUNNING', 'PAUSED', 'STOPPED')",
        "mode": "{mode} IN ('min', 'max')",
        "uuid": _UUID,
    },
    "trainable": {"uuid": _UUID},
    "checkpoint": {"uuid": _UUID},
    "worker": {"uuid": f"length({{uuid}}) IN (32, 36) AND {_HEX}"},
}


def upgrade() -> None:
    """Replace each table's domain by a trigger."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(LOCK)
    for table, columns in COLUMNS.items():
        new = {name: f"NEW.{name}" for name in columns}
        cases = " ".join(
            f"WHEN NOT ({text.format(**new)}) THEN '{table}_{name}_check'"
            for name, text in CHECKS[table].items()
        )
        op.execute(
            f"CREATE FUNCTION {table}_check() RETURNS trigger LANGUAGE plpgsql "
            "SET search_path = pg_catalog, pg_temp AS $$ "
            f"DECLARE violated text := CASE {cases} END; "
            "BEGIN IF violated IS NULL THEN RETURN NEW; END IF; "
            "RAISE check_violation USING CONSTRAINT = violated, TABLE = TG_TABLE_NAME, "
            "SCHEMA = TG_TABLE_SCHEMA, MESSAGE = 'new row for relation \"' || TG_TABLE_NAME || "
            "'\" violates check constraint \"' || violated || '\"'; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_check BEFORE INSERT OR UPDATE OF {', '.join(columns)} "
            f"ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_check()"
        )
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_facts_check")
        op.execute(f"DROP DOMAIN {table}_sound")
        op.execute(f"DROP TYPE {table}_facts")


def downgrade() -> None:
    """Give each table its domain back."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(LOCK)
    for table, columns in COLUMNS.items():
        value = {name: f"(VALUE).{name}" for name in columns}
        checks = " ".join(
            f"CONSTRAINT {table}_{name}_check CHECK ({text.format(**value)})"
            for name, text in CHECKS[table].items()
        )
        kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        op.execute(f"CREATE TYPE {table}_facts AS ({kinds})")
        op.execute(f"CREATE DOMAIN {table}_sound AS {table}_facts {checks}")
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {table}_facts_check "
            f"CHECK (CAST(ROW({', '.join(columns)}) AS {table}_sound) IS DISTINCT FROM NULL)"
        )
        op.execute(f"DROP TRIGGER {table}_check ON {table}")
        op.execute(f"DROP FUNCTION {table}_check()")
