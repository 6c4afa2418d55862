"""Mark trials that have tags, so that claims of trials without tags do not search for tags."""

import sqlalchemy as sa

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("trial", sa.Column("has_tags", sa.Boolean()))
    tagged = "SELECT trial_id FROM tag WHERE trial_id IS NOT NULL"
    op.execute(f"UPDATE trial SET has_tags = true WHERE id IN ({tagged})")


def downgrade() -> None:
    op.drop_column("trial", "has_tags")
