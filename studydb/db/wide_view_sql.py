"""
Wide views: `v_trial` and `v_result` of one study, with a column per parameter or metric.

Each view has a comment, its mark, that says what it shows. By their marks the views of a study are
found after the study was renamed, other people's views are never dropped, and a migration can drop
all wide views and make them again.
"""

# ruff: noqa: S608  this file quotes identifiers and texts

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

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
"""PostgreSQL has room for 1,600 in a view and 1,664 in a query's answer."""

MOST_NAME_BYTES = 63
"""The longest identifier; PostgreSQL cuts longer ones off, so that two could become the same."""

NEWEST_RESULTS = 100_000
"""How many rows are searched for names of metrics, beside the summaries of ended trials."""

MARK = "studydb wide view "

_MARKED: dict[ValueKind, Any] = {
    ValueKind.DOUBLE: True,
    ValueKind.TEXT: False,
    ValueKind.INTEGER: "integer",
}
_KINDS = {marked: kind for kind, marked in _MARKED.items()}
"""A column's kind as a mark writes it; marks are older than integer columns."""

_HASH_DIGITS = 8
_SCHEMA = "(SELECT oid FROM pg_namespace WHERE nspname = current_schema())"


class Texts(Protocol):
    """Runs SQL that is made as text, in the caller's transaction: a `Txn` or a migration."""

    @property
    def postgresql(self) -> bool:
        """Whether this is PostgreSQL; else it is SQLite."""

    def fetch_text(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows."""

    def run_text(self, sql: str) -> None:
        """Run a statement without rows."""


class Kind(StrEnum):
    """What a row of a view stands for."""

    TRIAL = "trial"
    RESULT = "result"


FIXED: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Kind.TRIAL: (
        ("study", "number", "state", "reason"),
        (
            *("value", "best_value", "best_step", "last_step", "attempt", "failures", "losses"),
            *("started_at", "ended_at", "duration_s"),
        ),
    ),
    Kind.RESULT: (("study", "number", "step", "value"), ("attempt", "reported_at")),
}
"""The columns of `v_trial` and `v_result` that stand before and after the wide ones."""


@dataclass(frozen=True, slots=True)
class Column:
    """
    A parameter or metric as a column.

    Attributes:
        keys: The keys of the nested objects that lead to the value; none for the study's metric.
        name: The column's name.
        kind: What the values are; a text column shows lists and objects as JSON.
    """

    keys: tuple[str, ...]
    name: str
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class WideView:
    """A view of one study's trials or results."""

    name: str
    study_id: int
    kind: Kind
    columns: tuple[Column, ...]

    @property
    def mark(self) -> str:
        """The view's comment: ASCII text that neither begins nor ends an SQL comment."""
        columns = [
            [list(column.keys), column.name, _MARKED[column.kind]] for column in self.columns
        ]
        what = {"study": self.study_id, "kind": self.kind, "columns": columns}
        return MARK + json.dumps(what).replace("/", r"\u002f")


def read_mark(name: str, text: str) -> WideView | None:
    """The view that a mark describes; None for another comment."""
    try:
        what = json.loads(text.removeprefix(MARK)) if text.startswith(MARK) else {}
        columns = [
            Column(tuple(keys), str(column), _KINDS[kind]) for keys, column, kind in what["columns"]
        ]
        return WideView(name, int(what["study"]), Kind(what["kind"]), tuple(columns))
    except (ValueError, KeyError, TypeError):
        return None


def view_name(kind: Kind, study_name: str, study_id: int) -> str:
    """
    Name a study's view: `v_trial_digits` for "digits".

    A name that needs quotes or is long is simplified, and ends in two underscores and the study's
    id, so that no two studies' views are alike.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", study_name.lower()).strip("_")
    prefix, suffix = f"v_{kind}_", f"__{study_id}"
    if plain == study_name and len(prefix + plain) <= MOST_NAME_BYTES:
        return prefix + plain
    plain = plain[: MOST_NAME_BYTES - len(prefix + suffix)].rstrip("_")
    return f"{prefix}{plain}{suffix}"


def bounded_names(names: Iterable[str], *, taken: Iterable[str]) -> list[str]:
    """
    Shorten column names to what both databases can hold, without making two the same.

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


def lock(txn: Texts) -> None:
    """
    Let one process at a time make views or migrate, until the transaction ends.

    It locks a table, for which a role needs a right to write; every role that may connect can hold
    an advisory lock. Readers of the version do not wait for it. SQLite has one writer.
    """
    if txn.postgresql:
        txn.run_text(f"LOCK TABLE {TABLE} IN SHARE ROW EXCLUSIVE MODE")


def found(txn: Texts) -> list[WideView]:
    """Every wide view of the database."""
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


def drop(txn: Texts, views: Iterable[WideView]) -> None:
    """Drop views that `found` returned."""
    for view in views:
        txn.run_text(f"DROP VIEW {quoted(view.name)}")


def make(txn: Texts, view: WideView) -> None:
    """
    Make a view, and let those read it who may read `v_trial`.

    Raises:
        NotAllowed: The name belongs to something else.
    """
    if _is_taken(txn, view.name):
        raise NotAllowed(
            f"There is a {view.name!r} in the database that `studydb views` has not made. "
            "Rename it, or the study."
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


def _is_taken(txn: Texts, name: str) -> bool:
    if txn.postgresql:
        sql = (
            f"SELECT 1 FROM pg_class WHERE relname = '{name}' "  # letters and digits
            f"AND relnamespace = {_SCHEMA}"
        )
    else:
        sql = f"SELECT 1 FROM sqlite_master WHERE lower(name) = '{name}'"
    return bool(txn.fetch_text(sql))


def owner_to_act_for(txn: Texts, name: str) -> str | None:
    """
    The owner of a table or view, quoted, if our login is a member of that role; PostgreSQL.

    What a member makes is given to the role. None if the owner may create nothing in this schema.
    """
    rows = txn.fetch_text(
        "SELECT quote_ident(rolname) FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner "
        f"WHERE relname = {literal(name)} AND relnamespace = {_SCHEMA} "
        "AND rolname <> current_user AND pg_has_role(relowner, 'USAGE') "
        "AND has_schema_privilege(relowner, relnamespace, 'CREATE')"
    )
    return rows[0][0] if rows else None


def _readers(txn: Texts) -> list[str]:
    rows = txn.fetch_text(
        "SELECT DISTINCT grantee FROM information_schema.role_table_grants "
        "WHERE table_schema = current_schema() AND table_name = 'v_trial' "
        "AND privilege_type = 'SELECT' AND grantee <> current_user"
    )
    return ["PUBLIC" if grantee == "PUBLIC" else quoted(grantee) for (grantee,) in rows]


def metric_kinds(txn: Texts, *, study_id: int) -> dict[str, bool]:
    """
    Whether each metric of a study is a number in all results.

    Numeric metrics are found in the summaries of all trials that have ended, others in the newest
    results only: reading millions of results would take minutes.
    """
    queries = _POSTGRESQL_METRICS if txn.postgresql else _SQLITE_METRICS
    given = {"study": study_id, "limit": NEWEST_RESULTS, "finite": NOT_FINITE}
    summed = txn.fetch_text(queries.summed.format(**given))
    listed = txn.fetch_text(queries.listed.format(**given))
    numeric = {str(name): True for (name,) in summed}
    return numeric | {str(name): bool(is_numeric) for name, is_numeric in listed}


_NEWEST = (
    "(SELECT metrics FROM result WHERE study_id = {study} "
    "ORDER BY trial_id DESC, attempt DESC, step DESC LIMIT {limit})"
)


@dataclass(frozen=True, slots=True)
class _MetricQueries:
    """
    The names of a study's metrics.

    Attributes:
        summed: Those in the summaries of ended trials.
        listed: Those in the newest results, each with whether it is numeric.
    """

    summed: str
    listed: str


_POSTGRESQL_METRICS = _MetricQueries(
    summed="SELECT DISTINCT jsonb_object_keys(metric_summary) AS name FROM trial "
    "WHERE study_id = {study} ORDER BY name",
    listed="SELECT e.key, bool_and(jsonb_typeof(e.value) IN ('number', 'null') "
    "OR (jsonb_typeof(e.value) = 'string' AND e.value #>> '{{}}' IN {finite})) "
    f"FROM {_NEWEST} r CROSS JOIN LATERAL jsonb_each(r.metrics) e GROUP BY e.key ORDER BY e.key",
)
_SQLITE_METRICS = _MetricQueries(
    summed="SELECT DISTINCT e.key FROM trial t, json_each(t.metric_summary) e "
    "WHERE t.study_id = {study} ORDER BY e.key",
    listed="SELECT e.key, min(e.type IN ('integer', 'real', 'null') "
    "OR (e.type = 'text' AND e.value IN {finite})) "
    f"FROM {_NEWEST} r, json_each(r.metrics) e GROUP BY e.key ORDER BY e.key",
)

_RESULTS = (
    "FROM result r JOIN attempt a ON a.trial_id = r.trial_id AND a.attempt = r.attempt "
    "AND r.step <= a.live_through JOIN trial t ON t.id = r.trial_id "
    "WHERE r.study_id = {study}"
)
_TRIALS = "FROM v_trial v WHERE v.study = (SELECT name FROM study WHERE id = {study})"


def _select(view: WideView, *, postgresql: bool) -> str:
    """The view's query, which finds the study by its id: its name may change."""
    if len(view.columns) > MOST_COLUMNS:
        raise NotAllowed(
            f"{view.name!r} would have {len(view.columns)} columns of parameters or metrics, and "
            f"{MOST_COLUMNS} are the most. Query v_{view.kind} instead."
        )
    own = {
        "study": f"(SELECT name FROM study WHERE id = {view.study_id})",
        "number": "t.number",
    }
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
