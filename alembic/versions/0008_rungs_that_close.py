"""
Store the ordinal of a closed rung's worst kept entry; index rungs, and trials paused with a study.

`is_over` marks a closed rung at which no trial waits. The index `rung_live` has all other rungs.
"""

import sqlalchemy as sa

from alembic import op

revision = "0008"
down_revision = "0007"

COLUMNS = ("closed_ordinal", "is_over")
LIVE = ("study_id", "bracket", "step")


def upgrade() -> None:
    """Add the columns and the indexes; let the roles that may close rungs write the columns."""
    op.add_column("rung", sa.Column("closed_ordinal", sa.BigInteger()))
    op.add_column(
        "rung", sa.Column("is_over", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    _create_partial("rung_live", "rung", LIVE, "NOT is_over", "is_over = 0")
    paused = "state = 'PAUSED' AND paused_by = 'study'"
    _create_partial("trial_paused_by_study", "trial", ("study_id",), paused, paused)
    if op.get_bind().dialect.name == "postgresql":
        for role in _writers():
            op.execute(f"GRANT UPDATE ({', '.join(COLUMNS)}) ON rung TO {role}")


def downgrade() -> None:
    op.drop_index("trial_paused_by_study", "trial")
    op.drop_index("rung_live", "rung")
    for column in reversed(COLUMNS):
        op.drop_column("rung", column)


def _create_partial(
    name: str, table: str, columns: tuple[str, ...], where: str, sqlite_where: str
) -> None:
    op.create_index(
        name,
        table,
        list(columns),
        postgresql_where=sa.text(where),
        sqlite_where=sa.text(sqlite_where),
    )


def _writers() -> list[str]:
    """Return, in quotes, the names of the roles that may update `rung.closed_at`."""
    quote = op.get_bind().dialect.identifier_preparer.quote_identifier
    found = op.get_bind().exec_driver_sql(
        "SELECT DISTINCT grantee FROM information_schema.column_privileges WHERE table_schema = "
        "current_schema() AND table_name = 'rung' AND column_name = 'closed_at' "
        "AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    return [quote(row[0]) for row in found]
