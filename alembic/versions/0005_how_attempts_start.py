"""Keep how an attempt's process was started, and how long after the claim its function began."""

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"

LAST = "a.error_message"
MORE = f"{LAST}, a.start, a.start_s"


def upgrade() -> None:
    """Add the columns, and show them in `v_attempt`."""
    op.add_column("attempt", sa.Column("start", sa.Text()))
    op.add_column("attempt", sa.Column("start_s", sa.Double()))
    query = _query().replace(LAST, MORE)
    if op.get_bind().dialect.name == "postgresql":  # keeps the view's owner and who may read it
        op.execute(_as_text(f"CREATE OR REPLACE VIEW v_attempt AS {query}"))
    else:
        _make_again(query)


def downgrade() -> None:
    """Take them out of the view, and drop them."""
    _make_again(_query().replace(MORE, LAST))
    op.drop_column("attempt", "start_s")
    op.drop_column("attempt", "start")


def _make_again(query: str) -> None:
    op.execute("DROP VIEW v_attempt")
    op.execute(_as_text(f"CREATE VIEW v_attempt AS {query}"))


def _query() -> str:
    """What the view selects now, its spaces made one."""
    if op.get_bind().dialect.name == "postgresql":
        found = "SELECT pg_get_viewdef('v_attempt'::regclass)"
    else:
        found = "SELECT sql FROM sqlite_master WHERE name = 'v_attempt'"
    text = " ".join(str(op.get_bind().exec_driver_sql(found).scalar_one()).split())
    return text.removeprefix("CREATE VIEW v_attempt AS").rstrip("; ")


def _as_text(sql: str) -> sa.TextClause:
    return sa.text(sql.replace(":", r"\:"))
