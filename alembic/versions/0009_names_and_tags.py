"""Show the names and tags of trials in `v_trial`; index the names and tags."""

import sqlalchemy as sa

from alembic import op, util

revision = "0009"
down_revision = "0008"


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
            FROM attempt a WHERE a.trial_id = t.id) AS duration_s{more}
    FROM trial t JOIN study s ON s.id = t.study_id"""

MORE = """,
           t.name,
           (SELECT {tags} FROM tag g
            WHERE g.study_id = t.study_id AND g.trial_id = t.id) AS tags"""


def upgrade() -> None:
    named = sa.text("name IS NOT NULL")
    op.create_index(
        "trial_name",
        "trial",
        ["study_id", "name"],
        unique=True,
        postgresql_where=named,
        sqlite_where=named,
    )
    op.create_index("tag_key", "tag", ["study_id", "key", "trial_id"])
    if op.get_bind().dialect.name == "postgresql":  # OR REPLACE keeps the owner and the grants
        op.execute(_as_text(f"CREATE OR REPLACE VIEW v_trial AS {_query(MORE)}"))
    else:
        _make_again(_query(MORE))


def downgrade() -> None:
    """Drop what `upgrade` added; the rows keep their names and tags."""
    _make_again(_query(""))
    op.drop_index("tag_key", "tag")
    op.drop_index("trial_name", "trial")


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
