"""Add CHECKs for UUIDs, of which paths of files are made; record who paused a study, and why."""

import sqlalchemy as sa

from alembic import op, util

revision = "0004"
down_revision = "0003"

LOCK = "LOCK TABLE trial, study, trainable, checkpoint, worker"
"""Locks the tables in the order in which workers lock rows: trials before studies."""

HEX = "ltrim({uuid}, '0123456789abcdef-') = ''"
UUID = f"length({{uuid}}) = 36 AND {HEX}"
CHECKS = {
    "study": UUID,
    "trial": UUID,
    "trainable": UUID,
    "checkpoint": UUID,
    "worker": f"length({{uuid}}) IN (32, 36) AND {HEX}",
}
WITH_DOMAIN = ("study", "trial")
"""The tables in `CHECKS` that already have a domain, from revision 0003."""


def upgrade() -> None:
    """Refuse rows without a valid UUID; then add the checks and the columns."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(LOCK)
    for table in CHECKS:
        _refuse_rows_without_uuid(table)
    op.add_column("study", sa.Column("paused_by", sa.Text()))
    op.add_column("study", sa.Column("pause_reason", sa.Text()))
    if op.get_bind().dialect.name == "postgresql":
        for table in CHECKS:
            _add_to_domain(table)
    else:
        for table in CHECKS:
            _rebuild(table, _with_check(_create_statement(table), table))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(LOCK)
        for table in CHECKS:
            _take_from_domain(table)
    else:
        for table in CHECKS:
            _rebuild(table, _create_statement(table).replace(_check(table), ""))
    op.drop_column("study", "pause_reason")
    op.drop_column("study", "paused_by")


def _refuse_rows_without_uuid(table: str) -> None:
    sound = CHECKS[table].format(uuid="uuid")
    found = _all(f"SELECT id, uuid FROM {table} WHERE NOT ({sound}) ORDER BY id LIMIT 5")
    if found:
        rows = ", ".join(f"{identity} ({text[:60]!r})" for identity, text in found)
        raise util.CommandError(
            f"The table {table} has rows whose uuid is not a valid UUID. The first of them, as id "
            f"(uuid): {rows}. Paths of files are made of UUIDs, and studydb writes only valid "
            "UUIDs: find out who wrote the rows, delete or correct them, and run `studydb db "
            "upgrade` again. Nothing was changed."
        )


def _all(sql: str) -> list[tuple[object, str]]:
    return [(row[0], row[1]) for row in op.get_bind().exec_driver_sql(sql)]


# --- PostgreSQL: add the condition to the domain to which the table's CHECK casts


def _add_to_domain(table: str) -> None:
    check = CHECKS[table].format(uuid="(VALUE).uuid")
    named = f"CONSTRAINT {table}_uuid_check CHECK ({check})"
    if table in WITH_DOMAIN:
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_facts_check")
        op.execute(f"ALTER TYPE {table}_facts ADD ATTRIBUTE uuid text")
        op.execute(f"ALTER DOMAIN {table}_sound ADD {named}")
    else:
        op.execute(f"CREATE TYPE {table}_facts AS (uuid text)")
        op.execute(f"CREATE DOMAIN {table}_sound AS {table}_facts {named}")
    _check_facts(table)


def _take_from_domain(table: str) -> None:
    op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_facts_check")
    if table in WITH_DOMAIN:
        op.execute(f"ALTER DOMAIN {table}_sound DROP CONSTRAINT {table}_uuid_check")
        op.execute(f"ALTER TYPE {table}_facts DROP ATTRIBUTE uuid")
        _check_facts(table)
    else:
        op.execute(f"DROP DOMAIN {table}_sound")
        op.execute(f"DROP TYPE {table}_facts")


def _check_facts(table: str) -> None:
    facts = _all(
        f"SELECT attnum, attname FROM pg_attribute WHERE attrelid = '{table}_facts'::regclass "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    row = f"ROW({', '.join(name for _, name in facts)})"
    op.execute(
        f"ALTER TABLE {table} ADD CONSTRAINT {table}_facts_check "
        f"CHECK (CAST({row} AS {table}_sound) IS DISTINCT FROM NULL)"
    )


# --- SQLite: rebuild the table, because a CHECK cannot be added to an existing table


def _check(table: str) -> str:
    return f", \n\tCONSTRAINT {table}_uuid_check CHECK ({CHECKS[table].format(uuid='uuid')})"


def _with_check(sql: str, table: str) -> str:
    head = sql[: sql.rindex(")")].rstrip()
    return f"{head}{_check(table)}\n)"


def _create_statement(table: str) -> str:
    return _all(f"SELECT name, sql FROM sqlite_master WHERE name = '{table}'")[0][1]


def _rebuild(table: str, sql: str) -> None:
    """
    Replace a table by the table that `sql` creates; copy the rows, and make the indexes again.

    With `legacy_alter_table`, views and foreign keys still refer to `table` after the RENAME.
    """
    indexes = _all(
        "SELECT name, sql FROM sqlite_master "
        f"WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL"
    )
    columns = ", ".join(name for _, name in _all(f"PRAGMA table_info({table})"))
    op.execute("PRAGMA legacy_alter_table=ON")
    op.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    op.get_bind().exec_driver_sql(sql)
    op.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}_before")
    # The new table continues the ids of the old one, so that no id is used twice.
    op.execute(f"DELETE FROM sqlite_sequence WHERE name = '{table}'")
    op.execute(f"UPDATE sqlite_sequence SET name = '{table}' WHERE name = '{table}_before'")
    op.execute(f"DROP TABLE {table}_before")
    for _, index in indexes:
        op.get_bind().exec_driver_sql(index)
    op.execute("PRAGMA legacy_alter_table=OFF")
