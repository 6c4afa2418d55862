"""Add what limits and stop rules of a study need: sums, best values, and running times."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0010"
down_revision = "0009"

Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
Time = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")

TIMES = ("running_s", "running_until")


def upgrade() -> None:
    """Add the columns, fill `study.started_at`; let the roles that run trials write the columns."""
    op.add_column(
        "counter", sa.Column("steps", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column("study", sa.Column("best_values", Json))
    op.add_column("study", sa.Column("started_at", Time))
    op.execute(
        "UPDATE study SET started_at = "
        "(SELECT min(worker.started_at) FROM worker WHERE worker.study_id = study.id)"
    )
    op.add_column("trial", sa.Column("running_s", sa.Double()))
    op.add_column("trial", sa.Column("running_until", Time))
    if op.get_bind().dialect.name == "postgresql":
        for role in _writers("study", "pause_reason"):
            op.execute(f"GRANT UPDATE (best_values, started_at) ON study TO {role}")
        for role in _writers("counter", "time_s"):
            op.execute(f"GRANT UPDATE (steps) ON counter TO {role}")
        for role in _writers("trial", "time_total_s"):
            op.execute(f"GRANT UPDATE ({', '.join(TIMES)}) ON trial TO {role}")


def downgrade() -> None:
    for column in reversed(TIMES):
        op.drop_column("trial", column)
    op.drop_column("study", "started_at")
    op.drop_column("study", "best_values")
    op.drop_column("counter", "steps")


def _writers(table: str, column: str) -> list[str]:
    """Return, in quotes, the names of the roles that may update a column."""
    quote = op.get_bind().dialect.identifier_preparer.quote_identifier
    found = op.get_bind().exec_driver_sql(
        "SELECT DISTINCT grantee FROM information_schema.column_privileges WHERE table_schema = "
        f"current_schema() AND table_name = '{table}' AND column_name = '{column}' "
        "AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    return [quote(row[0]) for row in found]
