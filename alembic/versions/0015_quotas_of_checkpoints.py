"""Add columns for the bytes of kept checkpoints and for the time when a study's deletion began."""

import sqlalchemy as sa

from alembic import op

revision = "0015"
down_revision = "0013"

INDEX = "checkpoint_kept"

Time = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("study", sa.Column("checkpoint_bytes", sa.BigInteger()))
    op.add_column("study", sa.Column("deleting_at", Time))
    kept = sa.text("removed_at IS NULL AND study_id > 0")
    op.create_index(
        INDEX, "checkpoint", ["study_id", "id"], postgresql_where=kept, sqlite_where=kept
    )
    for role in _workers():
        op.execute(f"GRANT UPDATE (checkpoint_bytes) ON study TO {role}")


def downgrade() -> None:
    op.drop_index(INDEX, "checkpoint")
    op.drop_column("study", "deleting_at")
    op.drop_column("study", "checkpoint_bytes")


def _workers() -> list[str]:
    """Return the roles that may update `study.best_values`, quoted for SQL; none on SQLite."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return []
    found = connection.exec_driver_sql(
        "SELECT DISTINCT quote_ident(grantee) FROM information_schema.column_privileges "
        "WHERE table_schema = current_schema() AND table_name = 'study' "
        "AND column_name = 'best_values' AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    return [row[0] for row in found]
