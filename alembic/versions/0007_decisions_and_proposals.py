"""
Add what schedulers, searchers, checkpoints and resources will need, while tables are small.

Later revisions only add to the schema, so that workers of the previous version can go on.
Revision 0006 was withdrawn, and its number is not used again; a database at 0006 is refused.
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op, util

revision = "0007"
down_revision = "0005"

LOCK = "LOCK TABLE rung, rung_entry, trial, attempt, study, counter, trainable"
"""Locks the tables in the order in which workers lock rows: rungs, trials, study, counters."""

Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
Time = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")

REASONS = (
    *("COMPLETED", "EARLY_STOPPED", "RULE_STOPPED", "CANCELLED", "FAILED", "LOST", "PREEMPTED"),
    *("TIMED_OUT", "EXPLOITED", "PAUSED"),
)
NEW_REASONS = ("GIVEN_UP", "BUDGET_SPENT", "OUT_OF_MEMORY", "INVALIDATED")
ORIGINS = ("searcher", "enqueued", "grid", "clone", "replicate")
NEW_ORIGINS = ("by index", "evaluated", "foreign")
ROLES = (
    *("trainable", "hook", "scheduler", "searcher", "rule", "resources", "predicate", "explore"),
)
WIDENED = {
    ("trial", "reason"): (REASONS, NEW_REASONS),
    ("trial", "origin"): (ORIGINS, NEW_ORIGINS),
    ("attempt", "reason"): (REASONS, NEW_REASONS),
}
"""By table and column: the values that a CHECK allowed before, and the values that are new."""


def _columns() -> dict[str, list[sa.Column[Any]]]:
    def zero(name: str, kind: Any) -> sa.Column[Any]:
        return sa.Column(name, kind, nullable=False, server_default="0")

    return {
        "study": [
            sa.Column("objectives", Json),
            sa.Column("proposer_token", sa.Text()),
            sa.Column("proposer_worker_id", Id),
            sa.Column("proposer_expires_at", Time),
        ],
        "trainable": [
            sa.Column("role", sa.Text(), nullable=False, server_default="trainable"),
            sa.Column("form", sa.Text(), nullable=False, server_default="function"),
        ],
        "trial": [
            sa.Column("config", Json),
            sa.Column("source_checkpoint_id", Id),
            sa.Column("generation", sa.Integer()),
            sa.Column("replicate_of", Id),
            sa.Column("is_unique", sa.Boolean()),
            sa.Column("feasible", sa.Boolean()),
            sa.Column("cost", sa.Double()),
        ],
        "attempt": [
            sa.Column("pid", sa.Integer()),
            sa.Column("devices", Json),
            sa.Column("exit_code", sa.Integer()),
            sa.Column("signal", sa.Integer()),
            sa.Column("cost", sa.Double()),
        ],
        "rung": [
            sa.Column("n_planned", sa.BigInteger()),
            zero("n_ended", sa.BigInteger()),
            sa.Column("closed_at", Time),
            sa.Column("closed_cutoff", sa.Double()),
        ],
        "rung_entry": [sa.Column("waiting", sa.Boolean()), sa.Column("promoted_at", Time)],
        "counter": [zero("cost", sa.Double()), zero("time_s", sa.Double())],
    }


def upgrade() -> None:
    if _is_postgresql():
        op.execute(LOCK)
    for table, columns in _columns().items():
        for column in columns:
            op.add_column(table, column)
    for (table, column), (before, new) in WIDENED.items():
        _replace_values(table, column, before, (*before, *new))
    _add_role_check()
    _create_tables()
    _create_partial(
        "trial_unique_params", "trial", ["study_id", "params_hash"], "is_unique", unique=True
    )
    _create_partial("rung_entry_waiting", "rung_entry", ["rung_id", "score", "ordinal"], "waiting")
    if _is_postgresql():
        _grant()


def downgrade() -> None:
    """
    Drop what `upgrade` added.

    The downgrade is refused while rows have values that the older schema does not know, or while
    trials wait at rungs.
    """
    if _is_postgresql():
        op.execute(LOCK)
    for (table, column), (_, new) in WIDENED.items():
        _refuse_rows_with(table, column, new)
    _refuse_waiting_trials()
    op.drop_index("rung_entry_waiting", "rung_entry")
    op.drop_index("trial_unique_params", "trial")
    for table in reversed(TABLES):
        op.drop_table(table)
    if _is_postgresql():
        for table in ("proposal", "upload"):
            op.execute(f"DROP DOMAIN {table}_sound")
            op.execute(f"DROP TYPE {table}_facts")
    _drop_role_check()
    for (table, column), (before, new) in WIDENED.items():
        _replace_values(table, column, (*before, *new), before)
    for table, columns in _columns().items():
        for column in columns:
            op.drop_column(table, column.name)
    if _is_postgresql():
        _revoke()


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _rows(sql: str) -> list[Any]:
    return list(op.get_bind().exec_driver_sql(sql))


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _refuse_rows_with(table: str, column: str, values: tuple[str, ...]) -> None:
    ((found,),) = _rows(f"SELECT count(*) FROM {table} WHERE {column} IN ({_listed(values)})")
    if found:
        raise util.CommandError(
            f"The table {table} has {found} rows with a {column} that the older schema does not "
            f"know ({_listed(values)}). Delete their studies, or keep this schema."
        )


def _refuse_waiting_trials() -> None:
    ((found,),) = _rows("SELECT count(*) FROM rung_entry WHERE waiting")
    if found:
        raise util.CommandError(
            f"{found} trials wait at a rung for their promotion. The older schema cannot store "
            "that they wait. Stop these trials or delete their studies, or keep this schema."
        )


# --- CHECKs


def _replace_values(
    table: str, column: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    name = f"{table}_{column}_check"
    if _is_postgresql():
        op.execute(f"ALTER DOMAIN {table}_sound DROP CONSTRAINT {name}")
        check = f"CHECK ((VALUE).{column} IN ({_listed(after)}))"
        op.execute(f"ALTER DOMAIN {table}_sound ADD CONSTRAINT {name} {check}")
        return
    old = f"CONSTRAINT {name} CHECK ({column} IN ({_listed(before)}))"
    new = f"CONSTRAINT {name} CHECK ({column} IN ({_listed(after)}))"
    _rebuild(table, old, new)


_ROLE_CHECK = f"role IN ({_listed(ROLES)})"


def _add_role_check() -> None:
    if _is_postgresql():
        op.execute("ALTER TABLE trainable DROP CONSTRAINT trainable_facts_check")
        op.execute("ALTER TYPE trainable_facts ADD ATTRIBUTE role text")
        check = f"CONSTRAINT trainable_role_check CHECK ((VALUE).{_ROLE_CHECK})"
        op.execute(f"ALTER DOMAIN trainable_sound ADD {check}")
        _check_facts("trainable", "uuid, role")
        return
    anchor = "CONSTRAINT trainable_uuid_check"
    _rebuild(
        "trainable", anchor, f"CONSTRAINT trainable_role_check CHECK ({_ROLE_CHECK}), {anchor}"
    )


def _drop_role_check() -> None:
    if _is_postgresql():
        op.execute("ALTER TABLE trainable DROP CONSTRAINT trainable_facts_check")
        op.execute("ALTER DOMAIN trainable_sound DROP CONSTRAINT trainable_role_check")
        op.execute("ALTER TYPE trainable_facts DROP ATTRIBUTE role")
        _check_facts("trainable", "uuid")
        return
    _rebuild("trainable", f"CONSTRAINT trainable_role_check CHECK ({_ROLE_CHECK}), ", "")


def _check_facts(table: str, columns: str) -> None:
    cast = f"CAST(ROW({columns}) AS {table}_sound) IS DISTINCT FROM NULL"
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_facts_check CHECK ({cast})")


def _rebuild(table: str, old: str, new: str) -> None:
    """
    Replace an SQLite table by one with another CHECK; copy the rows, and make the indexes again.

    With `legacy_alter_table`, views and foreign keys still refer to `table` after the RENAME.
    """
    ((sql,),) = _rows(f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
    assert old in sql, (table, old)
    indexes = _rows(
        "SELECT sql FROM sqlite_master "
        f"WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL"
    )
    columns = ", ".join(row[1] for row in _rows(f"PRAGMA table_info({table})"))
    op.execute("PRAGMA legacy_alter_table=ON")
    op.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    op.get_bind().exec_driver_sql(sql.replace(old, new))
    op.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}_before")
    if "AUTOINCREMENT" in sql:  # the new table continues the ids, so that no id is used twice
        op.execute(f"DELETE FROM sqlite_sequence WHERE name = '{table}'")
        op.execute(f"UPDATE sqlite_sequence SET name = '{table}' WHERE name = '{table}_before'")
    op.execute(f"DROP TABLE {table}_before")
    for (index,) in indexes:
        op.get_bind().exec_driver_sql(index)
    op.execute("PRAGMA legacy_alter_table=OFF")


# --- tables

TABLES = (
    *("pin", "upload", "log_chunk", "running_mean", "population", "lineage", "proposal"),
    "resource_class",
)

_UUID = "length({uuid}) = 36 AND ltrim({uuid}, '0123456789abcdef-') = ''"

REQUIRED = {"nullable": False}
OWN = {"nullable": False, "autoincrement": False}


def _identity() -> sa.Column[Any]:
    return sa.Column("id", Id, sa.Identity(), primary_key=True)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def _create_tables() -> None:
    _create_tables_of_artifacts()
    _create_tables_of_schedulers()
    _create_tables_of_asks()


def _create_tables_of_artifacts() -> None:
    op.create_table(
        "pin",
        _identity(),
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("checkpoint_id", Id, **REQUIRED),
        sa.Column("trial_id", Id),
        sa.Column("reason", sa.Text(), **REQUIRED),
        sa.Column("actor", sa.Text(), **REQUIRED),
        sa.Column("token", sa.Text()),
        sa.Column("at", Time, **REQUIRED),
        sa.ForeignKeyConstraint(["checkpoint_id"], ["checkpoint.id"], "pin_checkpoint_id_fkey"),
        sa.UniqueConstraint("token", name="pin_token_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_pin_checkpoint_id", "pin", ["checkpoint_id"])
    op.create_index("pin_trial", "pin", ["trial_id"])
    op.create_table(
        "upload",
        _identity(),
        sa.Column("uuid", sa.Text(), **REQUIRED),
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("trial_id", Id, **REQUIRED),
        sa.Column("attempt", sa.Integer(), **REQUIRED),
        sa.Column("url", sa.Text(), **REQUIRED),
        sa.Column("started_at", Time, **REQUIRED),
        sa.UniqueConstraint("uuid", name="upload_uuid_key"),
        *_sound("upload", "uuid", _UUID),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_upload_study_id", "upload", ["study_id"])
    op.create_table(
        "log_chunk",
        sa.Column("trial_id", Id, **OWN),
        sa.Column("attempt", sa.Integer(), **OWN),
        sa.Column("stream", sa.Text(), **REQUIRED),
        sa.Column("position", sa.BigInteger(), **OWN),
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("data", sa.LargeBinary(), **REQUIRED),
        sa.Column("at", Time, **REQUIRED),
        _key("log_chunk", "trial_id", "attempt", "stream", "position"),
    )


def _create_tables_of_schedulers() -> None:
    op.create_table(
        "running_mean",
        sa.Column("trial_id", Id, **OWN),
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("step", sa.BigInteger(), **REQUIRED),
        sa.Column("n_results", sa.BigInteger(), **REQUIRED),
        sa.Column("total", sa.Double(), **REQUIRED),
        _key("running_mean", "trial_id"),
    )
    op.create_index("ix_running_mean_study_id", "running_mean", ["study_id"])
    op.create_table(
        "population",
        sa.Column("study_id", Id, **OWN),
        sa.Column("generation", sa.Integer(), **OWN),
        sa.Column("trial_id", Id, **OWN),
        sa.Column("score", sa.Double(), **REQUIRED),
        sa.Column("checkpoint_id", Id),
        sa.Column("recorded_at", Time, **REQUIRED),
        _key("population", "study_id", "generation", "trial_id"),
    )
    op.create_table(
        "lineage",
        _identity(),
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("trial_id", Id, **REQUIRED),
        sa.Column("generation", sa.Integer(), **REQUIRED),
        sa.Column("source_trial_id", Id, **REQUIRED),
        sa.Column("source_checkpoint_id", Id, **REQUIRED),
        sa.Column("config", Json, **REQUIRED),
        sa.Column("at", Time, **REQUIRED),
        sqlite_autoincrement=True,
    )
    op.create_index("lineage_study", "lineage", ["study_id", "trial_id", "generation"])


def _create_tables_of_asks() -> None:
    op.create_table(
        "proposal",
        sa.Column("study_id", Id, **OWN),
        sa.Column("draw", sa.BigInteger(), **OWN),
        sa.Column("params", Json, **REQUIRED),
        sa.Column("params_hash", sa.Text(), **REQUIRED),
        sa.Column("config", Json, **REQUIRED),
        sa.Column("origin", sa.Text(), **REQUIRED),
        sa.Column("space_version", sa.Integer(), **REQUIRED),
        sa.Column("bracket", sa.Integer(), **REQUIRED),
        sa.Column("is_unique", sa.Boolean()),
        sa.Column("proposed_at", Time, **REQUIRED),
        _key("proposal", "study_id", "draw"),
        *_sound("proposal", "origin", f"{{origin}} IN ({_listed((*ORIGINS, *NEW_ORIGINS))})"),
    )
    op.create_table(
        "resource_class",
        sa.Column("study_id", Id, **REQUIRED),
        sa.Column("name", sa.Text(), **REQUIRED),
        sa.Column("request", Json, **REQUIRED),
        _key("resource_class", "study_id", "name"),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], "resource_class_study_id_fkey"),
    )


def _sound(table: str, column: str, check: str) -> Iterator[sa.CheckConstraint]:
    """Make the CHECK of a new table; on PostgreSQL, also the domain to which the CHECK casts."""
    if _is_postgresql():
        domain = check.replace(f"{{{column}}}", f"(VALUE).{column}")
        op.execute(f"CREATE TYPE {table}_facts AS ({column} text)")
        op.execute(
            f"CREATE DOMAIN {table}_sound AS {table}_facts "
            f"CONSTRAINT {table}_{column}_check CHECK ({domain})"
        )
        cast = f"CAST(ROW({column}) AS {table}_sound) IS DISTINCT FROM NULL"
        yield sa.CheckConstraint(cast, name=f"{table}_facts_check")
    else:
        plain = check.replace(f"{{{column}}}", column)
        yield sa.CheckConstraint(plain, name=f"{table}_{column}_check")


def _create_partial(
    name: str, table: str, columns: list[str], flag: str, *, unique: bool = False
) -> None:
    op.create_index(
        name,
        table,
        columns,
        unique=unique,
        postgresql_where=sa.text(flag),
        sqlite_where=sa.text(f"{flag} = 1"),
    )


# --- rights of the roles that exist


def _grant() -> None:
    """Give `trial`'s owner the new tables and types; grant rights to readers and workers."""
    quote = op.get_bind().dialect.identifier_preparer.quote_identifier
    ((owner,),) = _rows(
        "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'trial'::regclass"
    )
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} OWNER TO {quote(owner)}")
    for table in ("proposal", "upload"):
        op.execute(f"ALTER TYPE {table}_facts OWNER TO {quote(owner)}")
        op.execute(f"ALTER DOMAIN {table}_sound OWNER TO {quote(owner)}")
    for (role,) in _rows(_GRANTEES.format(right="SELECT", table="rung")):
        op.execute(f"GRANT SELECT ON {', '.join(TABLES)} TO {quote(role)}")
    for (role,) in _rows(_GRANTEES.format(right="INSERT", table="rung_entry")):
        op.execute(f"GRANT INSERT ON {', '.join(TABLES)}, rung TO {quote(role)}")
        op.execute(f"GRANT DELETE ON {', '.join(DELETED)} TO {quote(role)}")
        for table, columns in UPDATED.items():
            op.execute(f"GRANT UPDATE ({', '.join(columns)}) ON {table} TO {quote(role)}")


def _revoke() -> None:
    """Revoke what `_grant` granted on tables and columns that remain."""
    quote = op.get_bind().dialect.identifier_preparer.quote_identifier
    for (role,) in _rows(_GRANTEES.format(right="INSERT", table="rung_entry")):
        op.execute(f"REVOKE INSERT ON rung FROM {quote(role)}")
        op.execute(f"REVOKE UPDATE (num_draws) ON study FROM {quote(role)}")
        op.execute(f"REVOKE UPDATE (ranked) ON rung_entry FROM {quote(role)}")
        op.execute(f"REVOKE UPDATE (resource_class) ON trial FROM {quote(role)}")


_GRANTEES = (
    "SELECT DISTINCT pg_get_userbyid(a.grantee) FROM pg_class c, aclexplode(c.relacl) a "
    "WHERE c.oid = '{table}'::regclass AND a.grantee <> 0 AND a.grantee <> c.relowner "
    "AND a.privilege_type = '{right}'"
)

DELETED = ("proposal", "pin", "upload")
UPDATED = {
    "study": ("num_draws", "proposer_token", "proposer_worker_id", "proposer_expires_at"),
    "trial": (
        *("config", "source_checkpoint_id", "generation", "is_unique", "feasible", "cost"),
        "resource_class",
    ),
    "attempt": ("pid", "devices", "exit_code", "signal", "cost"),
    "rung": ("n_planned", "n_ended", "closed_at", "closed_cutoff"),
    "rung_entry": ("ranked", "waiting", "promoted_at"),
    "counter": ("cost", "time_s"),
    "running_mean": ("step", "n_results", "total"),
}
"""The columns that workers may change from this revision on, by table."""
