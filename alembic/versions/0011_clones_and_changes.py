"""
Index clones, invalidated trials and notes; add the columns `changed`, `parent` and
`invalidated_at` to the view `v_trial`.

Add columns for a trial's changed parameters, and for requests to stop trials without the worker's
grace.
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op, util

revision = "0011"
down_revision = "0010"

Json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

SPELLING = {
    "postgresql": {
        "seconds": "extract(epoch FROM (coalesce(a.ended_at, clock_timestamp()) - a.started_at))",
        "double": "double precision",
        "tags": "jsonb_agg(g.key ORDER BY g.key)",
    },
    "sqlite": {
        "seconds": "86400.0 * (julianday(coalesce(a.ended_at, 'now')) - julianday(a.started_at))",
        "double": "real",
        "tags": "nullif(json_group_array(g.key), '[]')",  # the index `tag_study` sorts the tags
    },
}

BEFORE = """
    SELECT s.name AS study, t.number, t.state, t.reason, t.params,
           t.last_value AS value, t.best_value, t.best_step, t.last_step,
           t.attempt, t.failures, t.losses, t.started_at, t.ended_at,
           (SELECT CAST(sum({seconds}) AS {double})
            FROM attempt a WHERE a.trial_id = t.id) AS duration_s,
           t.name,
           (SELECT {tags} FROM tag g
            WHERE g.study_id = t.study_id AND g.trial_id = t.id) AS tags{more}
    FROM trial t JOIN study s ON s.id = t.study_id"""

MORE = """,
           t.changed,
           (SELECT p.number FROM trial p WHERE p.id = t.parent_id) AS parent,
           t.invalidated_at"""

INDEXES = {
    "trial_parent": ["study_id", "parent_id"],
    "trial_invalidated": ["study_id", "number"],
}
WHERE = {"trial_parent": "parent_id IS NOT NULL", "trial_invalidated": "invalidated_at IS NOT NULL"}


def upgrade() -> None:
    op.add_column("trial", sa.Column("changed", Json))
    op.add_column("trial", sa.Column("request_now", sa.Boolean()))
    op.add_column("study", sa.Column("stopped_at_once", sa.Boolean()))
    for name, columns in INDEXES.items():
        where = sa.text(WHERE[name])
        op.create_index(name, "trial", columns, postgresql_where=where, sqlite_where=where)
    op.create_index("note_trial", "note", ["study_id", "trial_id"])
    if op.get_bind().dialect.name == "postgresql":  # OR REPLACE keeps the owner and the grants
        op.execute(_as_text(f"CREATE OR REPLACE VIEW v_trial AS {_query(MORE)}"))
        _grant("checkpoint", "pins", like="removed_at")
        _grant("trial", "request_now", like="request")
    else:
        _make_again(_query(MORE))


def downgrade() -> None:
    _make_again(_query(""))
    op.drop_index("note_trial", "note")
    for name in INDEXES:
        op.drop_index(name, "trial")
    op.drop_column("study", "stopped_at_once")
    op.drop_column("trial", "request_now")
    op.drop_column("trial", "changed")


def _grant(table: str, column: str, *, like: str) -> None:
    """Grant UPDATE of a column to the roles that may update the column `like`."""
    found = _rows(
        "SELECT DISTINCT quote_ident(grantee) FROM information_schema.column_privileges "
        f"WHERE table_schema = current_schema() AND table_name = '{table}' "
        f"AND column_name = '{like}' AND privilege_type = 'UPDATE' AND grantee <> 'PUBLIC'"
    )
    for role in found:
        op.execute(f"GRANT UPDATE ({column}) ON {table} TO {role}")


def _query(more: str) -> str:
    spelling = SPELLING[op.get_bind().dialect.name]
    return BEFORE.format(**spelling, more=more.format(**spelling))


def _make_again(query: str) -> None:
    readers: list[str] = []
    owner = ""
    if op.get_bind().dialect.name == "postgresql":
        view = "WHERE c.oid = 'v_trial'::regclass"
        _refuse_other_views()
        readers = _rows(
            "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' "
            "ELSE quote_ident(pg_get_userbyid(a.grantee)) END "
            "|| CASE WHEN bool_or(a.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END "
            "FROM pg_class c, aclexplode(c.relacl) a "
            f"{view} AND a.privilege_type = 'SELECT' GROUP BY a.grantee"
        )
        (owner,) = _rows(f"SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_class c {view}")
    op.execute("DROP VIEW v_trial")
    op.execute(_as_text(f"CREATE VIEW v_trial AS {query}"))
    if owner:
        op.execute(f"ALTER VIEW v_trial OWNER TO {owner}")
    for reader in readers:
        op.execute(f"GRANT SELECT ON v_trial TO {reader}")


def _refuse_other_views() -> None:
    found = _rows(
        "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d "
        "JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass "
        "WHERE d.refobjid = 'v_trial'::regclass AND r.ev_class <> d.refobjid ORDER BY 1"
    )
    if found:
        names = ", ".join(found)
        raise util.CommandError(
            "The view v_trial must be dropped and created again, but other views use it: "
            f"{names}. Nothing was changed. Drop these views, repeat the command, and then create "
            "the views again."
        )


def _rows(sql: str) -> list[str]:
    return [row[0] for row in op.get_bind().exec_driver_sql(sql)]


def _as_text(sql: str) -> sa.TextClause:
    return sa.text(sql.replace(":", r"\:"))
