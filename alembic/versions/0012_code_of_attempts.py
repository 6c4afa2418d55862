"""Let workers store which code an attempt has run."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    for role in _workers():
        op.execute(f"GRANT UPDATE (provenance) ON attempt TO {role}")


def downgrade() -> None:
    for role in _workers():
        op.execute(f"REVOKE UPDATE (provenance) ON attempt FROM {role}")


def _workers() -> list[str]:
    """Return the roles that may update `attempt.start_s`; names are quoted where SQL needs it."""
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return []
    found = connection.exec_driver_sql(
        "SELECT DISTINCT quote_ident(grantee) FROM information_schema.column_privileges "
        "WHERE table_schema = current_schema() AND table_name = 'attempt' "
        "AND column_name = 'start_s' AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    return [row[0] for row in found]
