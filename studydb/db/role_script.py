"""
Roles on PostgreSQL: the rights that an owner, a worker and a viewer need.

A worker cannot change the schema, a stored result, a trial's params, or the specs, the trainable
and the signatures of a study. It can claim and end any trial, pause and stop a study, report false
values, and delete rows of checkpoints, proposals, pins and uploads.
"""

# ruff: noqa: S608  this file quotes names and texts

import re
from collections.abc import Iterable, Iterator
from textwrap import dedent

from msgspec import Struct

from studydb.db import revisions
from studydb.db.literals import literal, quoted
from studydb.db.schema import TABLES
from studydb.db.wide_view_sql import MARK
from studydb.domain.roles import Role

STABLE_VIEWS = ("v_study", "v_trial", "v_result", "v_attempt", "v_checkpoint", "v_worker")
VIEWER_TIMEOUT = "60s"
VIEWER_SETTINGS = (
    ("default_transaction_read_only", "on"),
    ("statement_timeout", VIEWER_TIMEOUT),
    ("idle_in_transaction_session_timeout", VIEWER_TIMEOUT),
)

WORKER_INSERTS = (
    *("trial", "attempt", "result", "checkpoint", "worker", "rung_entry", "event"),
    *("rung", "running_mean", "population", "lineage", "proposal", "resource_class"),
    *("pin", "upload", "log_chunk"),
)
WORKER_DELETES = ("checkpoint", "proposal", "pin", "upload")
WORKER_UPDATES = {
    "study": (
        *("next_number", "next_draw", "num_draws", "n_counted", "n_running", "points"),
        *(
            "status",
            "paused_by",
            "pause_reason",
        ),  # a worker's transaction pauses or stops the study
        *("proposer_token", "proposer_worker_id", "proposer_expires_at"),
        *("best_values", "started_at", "checkpoint_bytes"),
    ),
    "trial": (
        *("state", "reason", "ready", "ready_at", "request", "request_now", "paused_by"),
        "metric_summary",
        *("verdict", "verdict_reason", "verdict_by", "attempt", "failures", "losses"),
        *("token", "flush_no", "worker_id", "lease_s", "lease_expires_at", "suspect_at"),
        *("checkpoint_id", "checkpoint_step", "n_results", "last_step", "last_value"),
        *("best_value", "best_step", "best_score", "rank_score", "time_total_s"),
        *("started_at", "ended_at", "config", "source_checkpoint_id", "generation"),
        *("is_unique", "feasible", "cost", "resource_class", "resources"),
        *("running_s", "running_until"),
    ),
    "attempt": (
        *("start_step", "live_through", "flush_no", "ended_at", "reason"),
        *("verdict", "verdict_reason", "verdict_by"),
        *("error_type", "error_message", "traceback", "log_dir", "log_tail"),
        *("start", "start_s", "provenance", "pid", "devices", "exit_code", "signal", "cost"),
    ),
    "checkpoint": ("data", "corrupt_at", "removed_at", "pins"),
    "worker": ("seen_at", "ended_at", "reserved_for"),
    "rung": (
        *("n_entries", "n_ranked", "cut_rank", "cut_score", "cut_trial_id"),
        *("n_planned", "n_ended", "closed_at", "closed_cutoff", "closed_ordinal", "is_over"),
    ),
    "rung_entry": ("ranked", "waiting", "promoted_at"),
    "running_mean": ("step", "n_results", "total"),
    "counter": ("pending", "running", "paused", "terminated", "error", "cost", "time_s", "steps"),
}
"""
The columns that a worker may update, by table. A test compares them with a worker's statements.

Some of the columns are not used yet, or are used only by workers of an older version.
"""

_HEAD = """
-- Run this in psql as the owner of the database and its tables, or as a superuser: after each
-- `studydb db upgrade`, and after you have granted a role to a login. People log in as members of
-- the roles: `studydb db roles --member NAME=owner|worker|viewer`. Set passwords by
-- \\password NAME.
BEGIN;
"""


class Roles(Struct, frozen=True):
    """
    The names of the three roles, their members, and the database with the tables.

    The roles are groups; people log in as members. On PostgreSQL a member inherits the rights of a
    group, but not the settings of the group. So the script sets a viewer's limits for each login.

    Attributes:
        members: Logins, each with its role.
    """

    database: str
    schema: str = "public"
    owner: str = Role.OWNER.default_name
    worker: str = Role.WORKER.default_name
    viewer: str = Role.VIEWER.default_name
    members: tuple[tuple[str, Role], ...] = ()

    def script(self) -> str:
        """Return the SQL that makes the roles and grants their rights; it may be run again."""
        parts = (
            *(_HEAD, f"LOCK TABLE {self._on([revisions.TABLE])} IN SHARE ROW EXCLUSIVE MODE;"),
            *(self._create(), self._owner(), self._worker(), self._viewer()),
            *(self._membership(login, role) for login, role in self.members),
            *(self._limits(), "COMMIT;"),
        )
        return "\n\n".join(dedent(part).strip() for part in parts)

    @property
    def _names(self) -> tuple[str, str, str]:
        return (self.owner, self.worker, self.viewer)

    @property
    def _tables(self) -> list[str]:
        return [*(table.name for table in TABLES), revisions.TABLE]

    def _on(self, names: Iterable[str]) -> str:
        return ", ".join(f"{_name(self.schema)}.{name}" for name in names)

    def _create(self) -> str:
        """
        Write SQL that makes the missing roles and logins.

        If a role or a login is missing and the caller may not make it, the SQL raises an error that
        says what an administrator should run.
        """
        logins = [name for name, _ in self.members]
        groups = ", ".join(map(_name, self._names))
        wanted = [f"CREATE ROLE {_name(name)};" for name in self._names]
        wanted += [f"CREATE ROLE {_name(name)} LOGIN;" for name in logins]
        wanted.append(f"GRANT {groups} TO ")
        hint = (
            "Have an administrator run these statements, without the CREATE ROLE of roles that "
            f"exist already: {' '.join(wanted)}"
        )
        return f"""
            DO $$ DECLARE caller pg_roles; role text; BEGIN
              SELECT * INTO caller FROM pg_roles WHERE rolname = current_user;
              FOREACH role IN ARRAY {_array([*self._names, *logins])} LOOP
                CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = role);
                IF NOT (caller.rolsuper OR caller.rolcreaterole) THEN
                  RAISE EXCEPTION 'There is no role %, and % may not create roles.',
                    role, current_user USING HINT = {literal(hint)}
                    || quote_ident(current_user) || ' WITH ADMIN OPTION; Then run this again.';
                END IF;
                BEGIN
                  EXECUTE format('CREATE ROLE %I %s', role,
                    CASE WHEN role = ANY ({_array(logins)}) THEN 'LOGIN' ELSE 'NOLOGIN' END);
                EXCEPTION WHEN duplicate_object OR unique_violation THEN
                  NULL;  -- the script runs in another database, too, and has just made the role
                END;
              END LOOP; END $$;
            """

    def _owner(self) -> str:
        owner = _name(self.owner)
        owned = [("TABLE", name) for name in self._tables]
        owned += [(kind.upper(), name) for table in TABLES for kind, name in table.info.items()]
        owned += [("VIEW", view) for view in STABLE_VIEWS]
        return "\n".join(
            (
                "-- The owner upgrades the schema, and creates, steers, renames, deletes studies.",
                self._present_owners(),
                *self._may_enter(),
                f"GRANT CREATE ON SCHEMA {_name(self.schema)} TO {owner};",
                *(f"ALTER {kind} {self._on([name])} OWNER TO {owner};" for kind, name in owned),
                f"REVOKE ALL ON {self._on([*self._tables, *STABLE_VIEWS])}",
                f"  FROM {_name(self.worker)}, {_name(self.viewer)};",
                self._wide_views(),
            )
        )

    def _present_owners(self) -> str:
        return dedent(f"""\
            DO $$ DECLARE holder oid; BEGIN
              FOR holder IN SELECT relowner FROM pg_class
                WHERE oid = {literal(self._on([revisions.TABLE]))}::regclass
                UNION SELECT oid FROM pg_roles WHERE rolname = current_user LOOP
                CONTINUE WHEN pg_has_role(holder, {literal(self.owner)}, 'USAGE');
                EXECUTE format('GRANT %I TO %s', {literal(self.owner)}, holder::regrole);
              END LOOP; END $$;""")

    def _may_enter(self) -> Iterator[str]:
        for name in map(_name, self._names):
            yield f"GRANT CONNECT ON DATABASE {_name(self.database)} TO {name};"
            yield f"GRANT USAGE ON SCHEMA {_name(self.schema)} TO {name};"
        yield "-- Up to PostgreSQL 14 every role may make tables in the schema public. If other"
        yield "-- roles need that right, grant them CREATE."
        yield f"REVOKE CREATE ON SCHEMA {_name(self.schema)} FROM PUBLIC;"

    def _wide_views(self) -> str:
        readers = f"{_name(self.worker)}, {_name(self.viewer)}"
        return dedent(f"""\
            DO $$ DECLARE wide regclass; BEGIN
              FOR wide IN SELECT oid FROM pg_class WHERE relkind = 'v'
                AND relnamespace = {literal(_name(self.schema))}::regnamespace
                AND obj_description(oid, 'pg_class') LIKE '{MARK}%' LOOP
                EXECUTE format('ALTER VIEW %s OWNER TO %I', wide, {literal(self.owner)});
                EXECUTE format('GRANT SELECT ON %s TO %s', wide, {literal(readers)});
              END LOOP; END $$;""")

    def _worker(self) -> str:
        worker = _name(self.worker)
        return "\n".join(
            (
                "-- A worker claims and runs trials. It may update only the columns listed here.",
                f"GRANT SELECT ON {self._on([*self._tables, *STABLE_VIEWS])} TO {worker};",
                f"GRANT INSERT ON {self._on(WORKER_INSERTS)} TO {worker};",
                *(
                    f"GRANT UPDATE ({', '.join(columns)}) ON {self._on([table])} TO {worker};"
                    for table, columns in WORKER_UPDATES.items()
                ),
                "-- A worker deletes pins and uploads that are no longer needed, proposals of",
                "-- taken draws, and the rows of checkpoints whose bytes it has deleted.",
                f"GRANT DELETE ON {self._on(WORKER_DELETES)} TO {worker};",
            )
        )

    def _viewer(self) -> str:
        viewer = _name(self.viewer)
        return f"""
            -- A viewer only reads. Readers of v_trial may also read what `studydb views` makes.
            GRANT SELECT ON {self._on([*self._tables, *STABLE_VIEWS])} TO {viewer};
            """

    def _membership(self, login: str, role: Role) -> str:
        by_role = dict(zip(Role, self._names, strict=True))
        group = by_role.pop(role)
        others = ", ".join(f"{literal(_name(name))}::regrole" for name in by_role.values())
        return f"""
            DO $$ DECLARE other text; BEGIN
              IF NOT pg_has_role({literal(login)}, {literal(group)}, 'USAGE') THEN
                GRANT {_name(group)} TO {_name(login)};
              END IF;
              FOR other IN SELECT roleid::regrole FROM pg_auth_members
                WHERE member = {literal(_name(login))}::regrole AND roleid IN ({others}) LOOP
                EXECUTE format('REVOKE %s FROM %I', other, {literal(login)});
              END LOOP; END $$;
            """

    def _limits(self) -> str:
        """
        Write SQL that limits each login that is only a viewer, except superusers.

        The SQL also removes these limits from `members` that are owners or workers. A caller who
        may not change a login gets a warning, with the line that changes the login.
        """
        writes = " OR ".join(
            f"pg_has_role(oid, {literal(name)}, 'MEMBER')" for name in (self.owner, self.worker)
        )
        writers = [name for name, role in self.members if role is not Role.VIEWER]
        settings = ", ".join(map(_array, VIEWER_SETTINGS))
        return f"""
            -- Limit each login that is only a viewer, because a role's settings are not
            -- inherited. After you have granted a role to a login, run this again.
            DO $$ DECLARE login record; setting text[]; line text; BEGIN
              FOR login IN SELECT oid, rolname, ({writes}) AS writes FROM pg_roles
                WHERE rolcanlogin AND NOT rolsuper
                  AND pg_has_role(oid, {literal(self.viewer)}, 'MEMBER') AND NOT ({writes})
                OR rolname = ANY ({_array(writers)}) AND oid IN (
                  SELECT setrole FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
                  WHERE d.datname = {literal(self.database)}
                  AND 'default_transaction_read_only=on' = ANY (setconfig)) LOOP
                FOREACH setting SLICE 1 IN ARRAY ARRAY[{settings}] LOOP
                  line := format(CASE WHEN login.writes THEN 'ALTER ROLE %I IN DATABASE %I RESET %s'
                    ELSE 'ALTER ROLE %I IN DATABASE %I SET %s = %L' END,
                    login.rolname, {literal(self.database)}, setting[1], setting[2]);
                  BEGIN
                    EXECUTE line;
                  EXCEPTION WHEN insufficient_privilege THEN
                    RAISE WARNING 'Not allowed here; % or an administrator can run: %;',
                      login.rolname, line;
                  END;
                END LOOP;
              END LOOP; END $$;
            """


def _array(texts: Iterable[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, texts))}]::text[]"


def _name(text: str) -> str:
    is_plain = re.fullmatch(r"[a-z]+_[a-z0-9_]+", text) and not text.startswith(
        ("current_", "session_")
    )
    return text if is_plain or text == "public" else quoted(text)
