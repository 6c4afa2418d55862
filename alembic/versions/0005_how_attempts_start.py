"""
Record how an attempt's process was started, and the seconds until the trainable began.

Workers may update a study's status from this revision on.
"""

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"

LAST = "a.error_message"
MORE = f"{LAST}, a.start, a.start_s"

OF_STUDY = ("status", "paused_by", "pause_reason")
"""Columns of `study` that workers may update from this revision on."""


def upgrade() -> None:
    op.add_column("attempt", sa.Column("start", sa.Text()))
    op.add_column("attempt", sa.Column("start_s", sa.Double()))
    query = _query().replace(LAST, MORE)
    if op.get_bind().dialect.name == "postgresql":  # OR REPLACE keeps the owner and the grants
        op.execute(_as_text(f"CREATE OR REPLACE VIEW v_attempt AS {query}"))
        _grant("attempt", ("start", "start_s"), like="log_tail")
        _grant("study", OF_STUDY, like="points")
    else:
        _make_again(query)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for role in _may_update("study", "points"):
            op.execute(f"REVOKE UPDATE ({', '.join(OF_STUDY)}) ON study FROM {role}")
    _make_again(_query().replace(MORE, LAST))
    op.drop_column("attempt", "start_s")
    op.drop_column("attempt", "start")


def _grant(table: str, columns: tuple[str, ...], *, like: str) -> None:
    """Grant UPDATE of the columns to the roles that may update the column `like`."""
    for role in _may_update(table, like):
        op.execute(f"GRANT UPDATE ({', '.join(columns)}) ON {table} TO {role}")


def _may_update(table: str, column: str) -> list[str]:
    return _rows(
        "SELECT DISTINCT grantee FROM information_schema.column_privileges WHERE table_schema = "
        f"current_schema() AND table_name = '{table}' AND column_name = '{column}' "
        "AND privilege_type = 'UPDATE'"
    )


def _make_again(query: str) -> None:
    readers: list[str] = []
    owner = ""
    if op.get_bind().dialect.name == "postgresql":
        view = "WHERE c.oid = 'v_attempt'::regclass"
        readers = _rows(
            "SELECT DISTINCT pg_get_userbyid(a.grantee) FROM pg_class c, aclexplode(c.relacl) a "
            f"{view} AND a.grantee <> 0 AND a.privilege_type = 'SELECT'"
        )
        (owner,) = _rows(f"SELECT pg_get_userbyid(c.relowner) FROM pg_class c {view}")
    op.execute("DROP VIEW v_attempt")
    op.execute(_as_text(f"CREATE VIEW v_attempt AS {query}"))
    if owner:
        op.execute(f"ALTER VIEW v_attempt OWNER TO {owner}")
    for role in readers:
        op.execute(f"GRANT SELECT ON v_attempt TO {role}")


def _rows(sql: str) -> list[str]:
    """Run a query for names of roles, and return the names in quotes, without PUBLIC."""
    quote = op.get_bind().dialect.identifier_preparer.quote_identifier
    return [quote(row[0]) for row in op.get_bind().exec_driver_sql(sql) if row[0] != "PUBLIC"]


def _query() -> str:
    if op.get_bind().dialect.name == "postgresql":
        found = "SELECT pg_get_viewdef('v_attempt'::regclass)"
    else:
        found = "SELECT sql FROM sqlite_master WHERE name = 'v_attempt'"
    text = " ".join(str(op.get_bind().exec_driver_sql(found).scalar_one()).split())
    return text.removeprefix("CREATE VIEW v_attempt AS").rstrip("; ")


def _as_text(sql: str) -> sa.TextClause:
    return sa.text(sql.replace(":", r"\:"))
