"""
Store the resource class of each proposal; add columns about resources to `v_trial` and `v_worker`.

`v_trial` shows the resources that each trial asks for. `v_worker` shows the resources that each
worker offers and uses, its tags, and the trial for which its resources are kept free.
"""

import sqlalchemy as sa

from alembic import op, util

revision = "0017"
down_revision = "0016"

SPELLING = {
    "postgresql": {
        "seconds": "extract(epoch FROM (coalesce(a.ended_at, clock_timestamp()) - a.started_at))",
        "double": "double precision",
        "tags": "jsonb_agg(g.key ORDER BY g.key)",
        "amounts": "w.resources -> 'amounts'",
        "worker_tags": "w.resources -> 'tags'",
        "all_amounts": "jsonb_object_agg(u.name, u.amount ORDER BY u.name)",
        "total": "CAST(round(sum(CAST(e.value AS numeric)), 6) AS double precision)",
        "each": "CROSS JOIN LATERAL jsonb_each_text(c.request) e",
        "holder": "CAST(t.resources ->> 'attempt' AS integer)",
        "held": "t.resources ->> 'class'",
    },
    "sqlite": {
        "seconds": "86400.0 * (julianday(coalesce(a.ended_at, 'now')) - julianday(a.started_at))",
        "double": "real",
        "tags": "nullif(json_group_array(g.key), '[]')",  # the index `tag_study` sorts the tags
        "amounts": "json_extract(w.resources, '$.amounts')",
        "worker_tags": "json_extract(w.resources, '$.tags')",
        "all_amounts": "nullif(json_group_object(u.name, u.amount), '{}')",
        "total": "round(sum(e.value), 6)",
        "each": "JOIN json_each(c.request) e",
        "holder": "json_extract(t.resources, '$.attempt')",
        "held": "json_extract(t.resources, '$.class')",
    },
}

TRIAL = """
    SELECT s.name AS study, t.number, t.state, t.reason, t.params,
           t.last_value AS value, t.best_value, t.best_step, t.last_step,
           t.attempt, t.failures, t.losses, t.started_at, t.ended_at,
           (SELECT CAST(sum({seconds}) AS {double})
            FROM attempt a WHERE a.trial_id = t.id) AS duration_s,
           t.name,
           (SELECT {tags} FROM tag g
            WHERE g.study_id = t.study_id AND g.trial_id = t.id) AS tags,
           t.changed,
           (SELECT p.number FROM trial p WHERE p.id = t.parent_id) AS parent,
           t.invalidated_at{more}
    FROM trial t JOIN study s ON s.id = t.study_id"""

MORE_OF_TRIAL = """,
           (SELECT c.request FROM resource_class c
            WHERE c.study_id = t.study_id AND c.name = t.resource_class) AS resources"""

WORKER = """
    SELECT w.uuid AS worker, s.name AS study, w.host, w.pid, w.slots,
           (SELECT count(*) FROM trial t
            WHERE t.study_id = w.study_id AND t.state = 'RUNNING' AND t.worker_id = w.id)
               AS running,
           w.request, w.version, w.started_at, w.seen_at, w.ended_at{more}
    FROM worker w JOIN study s ON s.id = w.study_id"""

MORE_OF_WORKER = """,
           {amounts} AS resources,
           (SELECT {all_amounts}
            FROM (SELECT e.key AS name, {total} AS amount
                  FROM trial t
                  JOIN resource_class c ON c.study_id = t.study_id AND c.name =
                      CASE WHEN {holder} = t.attempt THEN {held} ELSE t.resource_class END
                  {each}
                  WHERE t.study_id = w.study_id AND t.state = 'RUNNING' AND t.worker_id = w.id
                  GROUP BY e.key ORDER BY e.key) u) AS uses,
           {worker_tags} AS tags,
           w.reserved_for"""


def upgrade() -> None:
    op.add_column(
        "proposal", sa.Column("resource_class", sa.Text(), server_default="", nullable=False)
    )
    if op.get_bind().dialect.name == "postgresql":  # OR REPLACE keeps the owner and the grants
        for view, query in _queries(MORE_OF_TRIAL, MORE_OF_WORKER):
            op.execute(_as_text(f"CREATE OR REPLACE VIEW {view} AS {query}"))
        for role in _workers():
            op.execute(f"GRANT UPDATE (resources) ON trial TO {role}")
    else:
        for view, query in _queries(MORE_OF_TRIAL, MORE_OF_WORKER):
            _make_again(view, query)


def downgrade() -> None:
    for view, query in _queries("", ""):
        _make_again(view, query)
    for role in _workers():
        op.execute(f"REVOKE UPDATE (resources) ON trial FROM {role}")
    op.drop_column("proposal", "resource_class")


def _queries(more_of_trial: str, more_of_worker: str) -> list[tuple[str, str]]:
    spelling = SPELLING[op.get_bind().dialect.name]
    return [
        ("v_trial", TRIAL.format(**spelling, more=more_of_trial.format(**spelling))),
        ("v_worker", WORKER.format(**spelling, more=more_of_worker.format(**spelling))),
    ]


def _workers() -> list[str]:
    """Return the roles, quoted for SQL, that may update `trial.resource_class`; none on SQLite."""
    if op.get_bind().dialect.name != "postgresql":
        return []
    return _rows(
        "SELECT DISTINCT quote_ident(grantee) FROM information_schema.column_privileges "
        "WHERE table_schema = current_schema() AND table_name = 'trial' "
        "AND column_name = 'resource_class' AND privilege_type = 'UPDATE' "
        "AND grantee <> 'PUBLIC'"
    )


def _make_again(view: str, query: str) -> None:
    readers: list[str] = []
    owner = ""
    if op.get_bind().dialect.name == "postgresql":
        this = f"WHERE c.oid = '{view}'::regclass"
        _refuse_other_views(view)
        readers = _rows(
            "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' "
            "ELSE quote_ident(pg_get_userbyid(a.grantee)) END "
            "|| CASE WHEN bool_or(a.is_grantable) THEN ' WITH GRANT OPTION' ELSE '' END "
            "FROM pg_class c, aclexplode(c.relacl) a "
            f"{this} AND a.privilege_type = 'SELECT' GROUP BY a.grantee"
        )
        (owner,) = _rows(f"SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_class c {this}")
    op.execute(f"DROP VIEW {view}")
    op.execute(_as_text(f"CREATE VIEW {view} AS {query}"))
    if owner:
        op.execute(f"ALTER VIEW {view} OWNER TO {owner}")
    for reader in readers:
        op.execute(f"GRANT SELECT ON {view} TO {reader}")


def _refuse_other_views(view: str) -> None:
    found = _rows(
        "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d "
        "JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass "
        f"WHERE d.refobjid = '{view}'::regclass AND r.ev_class <> d.refobjid ORDER BY 1"
    )
    if found:
        names = ", ".join(found)
        raise util.CommandError(
            f"The view {view} must be dropped and created again, but other views use it: {names}. "
            "Nothing was changed. Drop these views, run the command again, and then create them "
            "again."
        )


def _rows(sql: str) -> list[str]:
    return [row[0] for row in op.get_bind().exec_driver_sql(sql)]


def _as_text(sql: str) -> sa.TextClause:
    return sa.text(sql.replace(":", r"\:"))
