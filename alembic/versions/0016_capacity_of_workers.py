"""Add a column for the trial for which a worker keeps its resources free."""

import sqlalchemy as sa

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("worker", sa.Column("reserved_for", sa.BigInteger()))
    for role in _workers():
        op.execute(f"GRANT UPDATE (reserved_for) ON worker TO {role}")


def downgrade() -> None:
    for role in _workers():
        op.execute(f"REVOKE UPDATE (reserved_for) ON worker FROM {role}")
    op.drop_column("worker", "reserved_for")


def _workers() -> list[str]:
    """Return the roles that may update `worker.seen_at`, quoted for SQL; none on SQLite."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return []
    found = connection.exec_driver_sql(
        "SELECT DISTINCT quote_ident(grantee) FROM information_schema.column_privileges "
        "WHERE table_schema = current_schema() AND table_name = 'worker' "
        "AND column_name = 'seen_at' AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    return [row[0] for row in found]
