"""
Roles on PostgreSQL: what an owner, a worker and a viewer need, and no more.

A worker cannot change the schema, a study's specs, what it runs and who signed that, the params of
a trial, or a result that is stored. It can claim and end any trial, report what is not true, and
delete rows of checkpoints, as it does with those that a newer one has replaced.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from studydb.db import version
from studydb.db.schema import METADATA
from studydb.db.spelling import literal, quoted
from studydb.db.views import MARK

STABLE_VIEWS = ("v_study", "v_trial", "v_result", "v_attempt", "v_checkpoint", "v_worker")
VIEWER_TIMEOUT = "60s"

WORKER_INSERTS = ("trial", "attempt", "result", "checkpoint", "worker", "rung_entry", "event")
WORKER_DELETES = ("checkpoint",)
WORKER_UPDATES = {
    "study": ("next_number", "next_draw", "n_counted", "n_running", "points"),
    "trial": (
        *("state", "reason", "ready", "ready_at", "request", "paused_by", "metric_summary"),
        *("verdict", "verdict_reason", "verdict_by", "attempt", "failures", "losses"),
        *("token", "flush_no", "worker_id", "lease_s", "lease_expires_at", "suspect_at"),
        *("checkpoint_id", "checkpoint_step", "n_results", "last_step", "last_value"),
        *("best_value", "best_step", "best_score", "rank_score", "time_total_s"),
        *("started_at", "ended_at"),
    ),
    "attempt": (
        *("start_step", "live_through", "flush_no", "ended_at", "reason"),
        *("verdict", "verdict_reason", "verdict_by"),
        *("error_type", "error_message", "traceback", "log_dir", "log_tail"),
    ),
    "checkpoint": ("data", "corrupt_at", "removed_at"),
    "worker": ("seen_at", "ended_at"),
    "rung": ("n_entries", "n_ranked", "cut_rank", "cut_score", "cut_trial_id"),
    "counter": ("pending", "running", "paused", "terminated", "error"),
}
"""By table; a test holds them against the statements of every operation that workers call."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What the three roles are called, and where the tables are."""

    database: str
    schema: str = "public"
    owner: str = "studydb_owner"
    worker: str = "studydb_worker"
    viewer: str = "studydb_viewer"

    def script(self) -> str:
        """The SQL that makes the roles and gives each its rights; running it again is harmless."""
        parts = (self._head(), self._owner(), self._worker(), self._viewer())
        return "\n\n".join("\n".join(part) for part in parts) + "\n\nCOMMIT;"

    @property
    def _tables(self) -> list[str]:
        return [*(table.name for table in METADATA.sorted_tables), version.TABLE]

    def _on(self, names: Iterable[str]) -> str:
        return ", ".join(f"{_name(self.schema)}.{name}" for name in names)

    def _head(self) -> Iterator[str]:
        yield "-- For psql, as a superuser or as who owns the tables and may make roles; after"
        yield "-- `studydb db upgrade`, and again after every later one. Passwords are given by"
        yield "-- \\password ROLE."
        yield "BEGIN;"
        for role in (self.owner, self.worker, self.viewer):
            yield (
                f"DO $$ BEGIN CREATE ROLE {_name(role)} LOGIN; "
                "EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
            )
            yield f"GRANT CONNECT ON DATABASE {_name(self.database)} TO {_name(role)};"
            yield f"GRANT USAGE ON SCHEMA {_name(self.schema)} TO {_name(role)};"
        yield "-- Up to PostgreSQL 14 everybody may make tables in the schema public: grant CREATE"
        yield "-- to others who rely on it."
        yield f"REVOKE CREATE ON SCHEMA {_name(self.schema)} FROM PUBLIC;"
        everything = self._on([*self._tables, *STABLE_VIEWS])
        yield f"REVOKE ALL ON {everything} FROM {_name(self.worker)}, {_name(self.viewer)};"

    def _owner(self) -> Iterator[str]:
        owner = _name(self.owner)
        yield "-- The owner upgrades the schema, and creates, steers, renames and deletes studies."
        yield f"GRANT CREATE ON SCHEMA {_name(self.schema)} TO {owner};"
        for name in self._tables:
            yield f"ALTER TABLE {self._on([name])} OWNER TO {owner};"
        for table in METADATA.sorted_tables:
            for kind, name in table.info.items():
                yield f"ALTER {kind.upper()} {self._on([name])} OWNER TO {owner};"
        for view in STABLE_VIEWS:
            yield f"ALTER VIEW {self._on([view])} OWNER TO {owner};"
        yield "DO $$ DECLARE wide regclass; BEGIN"
        yield "  FOR wide IN SELECT oid FROM pg_class WHERE relkind = 'v'"
        yield f"    AND relnamespace = {literal(_name(self.schema))}::regnamespace"
        yield f"    AND obj_description(oid, 'pg_class') LIKE '{MARK}%'"
        yield f"  LOOP EXECUTE format('ALTER VIEW %s OWNER TO %I', wide, {literal(self.owner)});"
        yield "  END LOOP; END $$;"

    def _worker(self) -> Iterator[str]:
        worker = _name(self.worker)
        yield "-- A worker claims and runs trials: no DDL; UPDATE of the columns that it writes."
        yield f"GRANT SELECT ON {self._on([*self._tables, *STABLE_VIEWS])} TO {worker};"
        yield f"GRANT INSERT ON {self._on(WORKER_INSERTS)} TO {worker};"
        for table, columns in WORKER_UPDATES.items():
            yield f"GRANT UPDATE ({', '.join(columns)}) ON {self._on([table])} TO {worker};"
        yield "-- Only rows of checkpoints go while a study lives: those that a newer one replaces."
        yield f"GRANT DELETE ON {self._on(WORKER_DELETES)} TO {worker};"

    def _viewer(self) -> Iterator[str]:
        viewer, database = _name(self.viewer), _name(self.database)
        yield "-- A viewer reads. `studydb views` lets whoever may read v_trial read its views."
        yield f"GRANT SELECT ON {self._on([*self._tables, *STABLE_VIEWS])} TO {viewer};"
        for setting, value in (
            ("default_transaction_read_only", "on"),
            ("statement_timeout", f"'{VIEWER_TIMEOUT}'"),
            ("idle_in_transaction_session_timeout", f"'{VIEWER_TIMEOUT}'"),
        ):
            yield f"ALTER ROLE {viewer} IN DATABASE {database} SET {setting} = {value};"


def _name(text: str) -> str:
    """An identifier, quoted unless it certainly needs no quotes."""
    is_plain = re.fullmatch(r"[a-z]+_[a-z0-9_]+", text) and not text.startswith(
        ("current_", "session_")
    )
    return text if is_plain or text == "public" else quoted(text)
