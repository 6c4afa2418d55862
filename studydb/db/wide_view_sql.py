"""
Wide views: `v_trial` and `v_result` of one study, with a column per parameter or metric.

Each view has a comment, called its mark, which lists the study, the kind and the columns. By this
mark, studydb finds the views of a study that was renamed. A view without a mark was made by a
person, so studydb never drops it. An upgrade of the schema drops all wide views and makes them
again; a downgrade only drops them.
"""

# ruff: noqa: S608  this file quotes identifiers and texts

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from studydb.db.literals import (
    NOT_FINITE,
    ValueKind,
    literal,
    postgresql_value,
    quoted,
    sqlite_value,
)
from studydb.db.revisions import TABLE
from studydb.domain.errors import NotAllowed

MOST_COLUMNS = 1000
"""The most columns of parameters or metrics in a wide view. PostgreSQL allows 1,600 columns."""

MOST_NAME_BYTES = 63
"""The longest identifier. PostgreSQL cuts longer names, so that two names could become the same."""

NEWEST_RESULTS = 100_000
"""How many results of a study, from its newest trials, are searched for metrics and their types."""

MARK = "studydb wide view "

_MARKED: dict[ValueKind, Any] = {
    ValueKind.DOUBLE: True,
    ValueKind.TEXT: False,
    ValueKind.INTEGER: "integer",
}
_KINDS = {marked: kind for kind, marked in _MARKED.items()}
"""
The types of columns, as marks write them: true means double, and false means text. The marks of
earlier versions have only these two types.
"""

_HASH_DIGITS = 8
_SCHEMA = "(SELECT oid FROM pg_namespace WHERE nspname = current_schema())"


class TextRunner(Protocol):
    """Runs SQL texts in the caller's transaction: a `Txn`, or the connection of a migration."""

    @property
    def postgresql(self) -> bool:
        """Whether the database is PostgreSQL; False means SQLite."""

    def fetch_text(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows."""

    def run_text(self, sql: str) -> None:
        """Run a statement that returns no rows."""


class Kind(StrEnum):
    """What the rows of a view are."""

    TRIAL = "trial"
    RESULT = "result"


FIXED: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Kind.TRIAL: (
        ("study", "number", "state", "reason"),
        (
            *("value", "best_value", "best_step", "last_step", "attempt", "failures", "losses"),
            *("started_at", "ended_at", "duration_s", "name", "tags"),
            *("changed", "parent", "invalidated_at", "resources"),
        ),
    ),
    Kind.RESULT: (("study", "number", "step", "value"), ("attempt", "reported_at")),
}
"""The columns of `v_trial` or `v_result` that a wide view has before and after its own columns."""

PREFIX = {Kind.TRIAL: "param/", Kind.RESULT: "metric/"}
"""What is put before the name of a parameter or metric if another column has this name."""


class Column(Struct, frozen=True):
    """
    A parameter or metric as a column.

    Attributes:
        keys: The keys of the nested objects that lead to the value; empty for the study's metric.
        name: The column's name.
        kind: The type of the values; a text column shows lists and objects as JSON.
    """

    keys: tuple[str, ...]
    name: str
    kind: ValueKind


class WideView(Struct, frozen=True):
    """A view of one study's trials or results."""

    name: str
    study_id: int
    kind: Kind
    columns: tuple[Column, ...]

    @property
    def mark(self) -> str:
        """The view's comment: ASCII text in which no SQL comment begins or ends."""
        columns = [
            [list(column.keys), column.name, _MARKED[column.kind]] for column in self.columns
        ]
        what = {"study": self.study_id, "kind": self.kind, "columns": columns}
        return MARK + json.dumps(what).replace("/", r"\u002f")


def read_mark(name: str, text: str) -> WideView | None:
    """
    Return the view that a mark describes; None for a text that is no mark.

    An earlier studydb may have given the column of a parameter or metric a name that is now in
    `FIXED`. Such a column gets the name that it would have if the view were made now.
    """
    try:
        what = json.loads(text.removeprefix(MARK)) if text.startswith(MARK) else {}
        kind = Kind(what["kind"])
        fixed = {column for part in FIXED[kind] for column in part}
        columns = [
            Column(
                tuple(keys), PREFIX[kind] + column if column in fixed else column, _KINDS[marked]
            )
            for keys, column, marked in what["columns"]
        ]
        return WideView(name, int(what["study"]), kind, tuple(columns))
    except (ValueError, KeyError, TypeError):
        return None


def view_name(kind: Kind, study_name: str, study_id: int) -> str:
    """
    Name a study's view: `v_trial_digits` for "digits".

    A study's name is simplified if it is long, or is not made of a-z, 0-9 and single underscores
    between these. The view's name then ends in two underscores and the study's id.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", study_name.lower()).strip("_")
    prefix, suffix = f"v_{kind}_", f"__{study_id}"
    if plain == study_name and len(prefix + plain) <= MOST_NAME_BYTES:
        return prefix + plain
    plain = plain[: MOST_NAME_BYTES - len(prefix + suffix)].rstrip("_")
    return f"{prefix}{plain}{suffix}"


def bounded_names(names: Iterable[str], *, taken: Iterable[str]) -> list[str]:
    """
    Shorten column names to what both databases can hold, and keep them distinct.

    SQLite takes "lr" and "LR" for the same name.
    """
    used = {name.lower() for name in taken}
    bounded = []
    for name in names:
        column = name if _fits(name) and name.lower() not in used else _shortened(name)
        used.add(column.lower())
        bounded.append(column)
    return bounded


def _fits(name: str) -> bool:
    return 0 < len(name.encode()) <= MOST_NAME_BYTES


def _shortened(name: str) -> str:
    digits = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    room = MOST_NAME_BYTES - len(digits) - 1
    return f"{name.encode()[:room].decode(errors='ignore')}_{digits}"


def lock(txn: TextRunner) -> None:
    """
    Wait until no other process makes views or migrates; block such processes until the COMMIT.

    On SQLite this function does nothing, because BEGIN IMMEDIATE blocks all other writers. On
    PostgreSQL the lock is on a table, because only roles that may write to the table can take this
    lock. Any role that may connect could hold an advisory lock. Reading the schema's revision does
    not wait.
    """
    if txn.postgresql:
        txn.run_text(f"LOCK TABLE {TABLE} IN SHARE ROW EXCLUSIVE MODE")


def found(txn: TextRunner) -> list[WideView]:
    """Find all wide views of the database."""
    if txn.postgresql:
        sql = (
            "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class WHERE relkind = 'v' "
            f"AND relnamespace = {_SCHEMA} "
            f"AND obj_description(oid, 'pg_class') LIKE '{MARK}%' ORDER BY relname"
        )
        rows = [(name, mark) for name, mark in txn.fetch_text(sql)]
    else:
        sql = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'view' "
            f"AND sql LIKE '%/* {MARK}%' ORDER BY name"
        )
        rows = [(name, _comment_in(text)) for name, text in txn.fetch_text(sql)]
    views = (read_mark(name, mark) for name, mark in rows)
    return [view for view in views if view is not None]


def _comment_in(text: str) -> str:
    return text.partition(f"/* {MARK}")[1][3:] + text.partition(MARK)[2].partition(" */")[0]


def drop(txn: TextRunner, views: Iterable[WideView]) -> None:
    """Drop views that `found` returned."""
    for view in views:
        txn.run_text(f"DROP VIEW {quoted(view.name)}")


def make(txn: TextRunner, view: WideView) -> None:
    """
    Make a view, and let the roles that may read `v_trial` read the view.

    Raises:
        NotAllowed: Another object has this name, or the view would have more than `MOST_COLUMNS`
            columns of parameters or metrics.
    """
    if _is_taken(txn, view.name):
        raise NotAllowed(
            f"The database has a {view.name!r} that `studydb views` did not make. Rename that "
            "object, or the study."
        )
    mark, query = view.mark, _select(view, postgresql=txn.postgresql)
    txn.run_text(f"CREATE VIEW {quoted(view.name)} AS /* {mark} */ {query}")
    if txn.postgresql:
        txn.run_text(f"COMMENT ON VIEW {quoted(view.name)} IS {literal(mark)}")
        owner = owner_to_act_for(txn, "v_trial")
        if owner is not None:
            txn.run_text(f"ALTER VIEW {quoted(view.name)} OWNER TO {owner}")
        for grantee in _readers(txn):
            txn.run_text(f"GRANT SELECT ON {quoted(view.name)} TO {grantee}")


def _is_taken(txn: TextRunner, name: str) -> bool:
    if txn.postgresql:
        sql = (
            f"SELECT 1 FROM pg_class WHERE relname = '{name}' "  # a name has only a-z, 0-9, _
            f"AND relnamespace = {_SCHEMA}"
        )
    else:
        sql = f"SELECT 1 FROM sqlite_master WHERE lower(name) = '{name}'"
    return bool(txn.fetch_text(sql))


def owner_to_act_for(txn: TextRunner, name: str) -> str | None:
    """
    Return the owner of a table or view, quoted, if our login can create objects as this owner.

    Returns:
        None if our login is the owner, if it is not a member of the owner's role, or if the owner
        may not create objects in this schema.
    """
    rows = txn.fetch_text(
        "SELECT quote_ident(rolname) FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner "
        f"WHERE relname = {literal(name)} AND relnamespace = {_SCHEMA} "
        "AND rolname <> current_user AND pg_has_role(relowner, 'USAGE') "
        "AND has_schema_privilege(relowner, relnamespace, 'CREATE')"
    )
    return rows[0][0] if rows else None


def _readers(txn: TextRunner) -> list[str]:
    rows = txn.fetch_text(
        "SELECT DISTINCT grantee FROM information_schema.role_table_grants "
        "WHERE table_schema = current_schema() AND table_name = 'v_trial' "
        "AND privilege_type = 'SELECT' AND grantee <> current_user"
    )
    return ["PUBLIC" if grantee == "PUBLIC" else quoted(grantee) for (grantee,) in rows]


def metric_kinds(txn: TextRunner, *, study_id: int) -> dict[str, bool]:
    """
    Return for each metric of a study whether all its values that were read are numbers or null.

    The summaries of ended trials give the names of numeric metrics. Values are read only from
    `NEWEST_RESULTS` results, because reading millions of results would take minutes.
    """
    newest = (
        f"(SELECT metrics FROM result WHERE study_id = {study_id} "
        f"ORDER BY trial_id DESC, attempt DESC, step DESC LIMIT {NEWEST_RESULTS})"
    )
    if txn.postgresql:
        in_summaries = (
            "SELECT DISTINCT jsonb_object_keys(metric_summary) AS name FROM trial "
            f"WHERE study_id = {study_id} ORDER BY name"
        )
        in_results = (
            "SELECT e.key, bool_and(jsonb_typeof(e.value) IN ('number', 'null') "
            f"OR (jsonb_typeof(e.value) = 'string' AND e.value #>> '{{}}' IN {NOT_FINITE})) "
            f"FROM {newest} r CROSS JOIN LATERAL jsonb_each(r.metrics) e "
            "GROUP BY e.key ORDER BY e.key"
        )
    else:
        in_summaries = (
            "SELECT DISTINCT e.key FROM trial t, json_each(t.metric_summary) e "
            f"WHERE t.study_id = {study_id} ORDER BY e.key"
        )
        in_results = (
            "SELECT e.key, min(e.type IN ('integer', 'real', 'null') "
            f"OR (e.type = 'text' AND e.value IN {NOT_FINITE})) "
            f"FROM {newest} r, json_each(r.metrics) e GROUP BY e.key ORDER BY e.key"
        )
    numeric = {str(name): True for (name,) in txn.fetch_text(in_summaries)}
    listed = txn.fetch_text(in_results)
    return numeric | {str(name): bool(is_numeric) for name, is_numeric in listed}


_RESULTS = (
    "FROM result r JOIN attempt a ON a.trial_id = r.trial_id AND a.attempt = r.attempt "
    "AND r.step <= a.live_through JOIN trial t ON t.id = r.trial_id "
    "WHERE r.study_id = {study}"
)
_TRIALS = "FROM v_trial v WHERE v.study = (SELECT name FROM study WHERE id = {study})"


def _select(view: WideView, *, postgresql: bool) -> str:
    """Write the view's query, which finds the study by id, because a study's name may change."""
    if len(view.columns) > MOST_COLUMNS:
        raise NotAllowed(
            f"{view.name!r} would have {len(view.columns)} columns of parameters or metrics; "
            f"at most {MOST_COLUMNS} are possible. Query v_{view.kind} instead."
        )
    own = {"study": f"(SELECT name FROM study WHERE id = {view.study_id})", "number": "t.number"}
    before, after = (
        [
            f"v.{name}" if view.kind is Kind.TRIAL else f"{own.get(name, f'r.{name}')} AS {name}"
            for name in names
        ]
        for names in FIXED[view.kind]
    )
    document = "v.params" if view.kind is Kind.TRIAL else "r.metrics"
    spread = [
        f"{_value(column, document, postgresql=postgresql)} AS {quoted(column.name)}"
        for column in view.columns
    ]
    source = (_TRIALS if view.kind is Kind.TRIAL else _RESULTS).format(study=view.study_id)
    return f"SELECT {', '.join([*before, *spread, *after])} {source}"


def _value(column: Column, document: str, *, postgresql: bool) -> str:
    if not column.keys:
        return "r.value"
    value_in = postgresql_value if postgresql else sqlite_value
    return value_in(document, column.keys, kind=column.kind)
