"""Wide views: SQL views with the columns of the data frames."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studydb.analysis.expanding import expanded_names
from studydb.db import Database
from studydb.db.literals import ValueKind
from studydb.db.wide_view_sql import FIXED, Column, Kind, WideView, bounded_names, view_name
from studydb.domain.canonical import is_number
from studydb.domain.records import Study
from studydb.domain.roles import Role
from studydb.domain.space.domains import Choice, Domain, Integer
from studydb.operations import wide_views
from studydb.operations.writing import write

_INTEGERS = range(-(2**63), 2**63)
"""The integers that both databases can store."""


def make_wide_views(database: Database, study: Study) -> tuple[list[WideView], list[str]]:
    """
    Make a study's wide views: trials with a column per parameter, results with a column per metric.

    The columns have the names of the data frames' columns, cut to 63 bytes. A parameter whose
    values are all integers of 64 bits has an integer column; the values of a `quniform` are
    doubles. Columns of other parameters and of metrics are doubles, or texts if a value is not a
    number. A metric never has an integer column, because the type of the metric's values may change
    from step to step. A metric that is first reported after the views were made has no column.

    Returns:
        The views that were made, and the names of this study's older views that were dropped
        without a new view of the same name.

    Raises:
        NotAllowed: Another object in the database has the name of one of the views, or a view would
            have too many columns.
    """
    made = [trial_view(study), result_view(study, wide_views.metric_kinds(database, study))]
    return made, write(
        database, lambda: wide_views.make_views(database, study, made), role=Role.OWNER
    )


def trial_view(study: Study) -> WideView:
    """Define the view of a study's trials."""
    domains = study.space.parameters
    names = _names(Kind.TRIAL, [*domains], (), prefix="param/")
    columns = [
        Column(tuple(path.split("/")), name, kind_of(domains[path])) for path, name in names.items()
    ]
    return _view(Kind.TRIAL, study, columns)


def result_view(study: Study, kinds: Mapping[str, bool]) -> WideView:
    """
    Define the view of a study's live results.

    Args:
        kinds: For each metric's name, whether all values of the metric are numbers.
    """
    names = _names(Kind.RESULT, [study.objective.metric], kinds, prefix="metric/")
    columns = [
        Column((), name, ValueKind.DOUBLE)
        if metric == study.objective.metric
        else Column((metric,), name, ValueKind.DOUBLE if kinds[metric] else ValueKind.TEXT)
        for metric, name in names.items()
    ]
    return _view(Kind.RESULT, study, columns)


def _names(
    kind: Kind, first: Sequence[str], others: Iterable[str], *, prefix: str
) -> dict[str, str]:
    taken = [name for fixed in FIXED[kind] for name in fixed]
    names = expanded_names(first, others, taken=taken, prefix=prefix)
    return dict(zip(names, bounded_names(names.values(), taken=taken), strict=True))


def _view(kind: Kind, study: Study, columns: Iterable[Column]) -> WideView:
    return WideView(view_name(kind, study.name, study.id), study.id, kind, tuple(columns))


def kind_of(domain: Domain) -> ValueKind:
    """Return the SQL type of a domain's values."""
    if isinstance(domain, Integer):
        fits = domain.lower in _INTEGERS and domain.upper in _INTEGERS
        return ValueKind.INTEGER if fits else ValueKind.DOUBLE
    if not isinstance(domain, Choice):
        return ValueKind.DOUBLE
    values = domain.distinct
    if all(map(_is_integer, values)):
        return ValueKind.INTEGER
    return ValueKind.DOUBLE if all(map(is_number, values)) else ValueKind.TEXT


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and value in _INTEGERS
