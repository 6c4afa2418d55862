"""Keep the proposals for the next draws in the study's row, so that an ask is one statement."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "0002"
down_revision = "0001"

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Add the column; a study without proposals gets them at its next ask."""
    op.add_column("study", sa.Column("points", JSON))


def downgrade() -> None:
    op.drop_column("study", "points")
