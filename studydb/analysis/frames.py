"""
Frames: the stable views as pandas reads them, with a column per parameter or metric.

Rows come in pages as of one moment and columns grow compactly (see `columns`), so that it takes
little more memory than the frame itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from studydb.analysis.columns import Column, Floats, Integers, Moments, Texts, Values
from studydb.analysis.naming import spread_names
from studydb.db import Database
from studydb.domain.errors import StudydbError
from studydb.domain.records import Study
from studydb.operations import listing

if TYPE_CHECKING:
    import pandas as pd


def trials_dataframe(database: Database, study: Study) -> "pd.DataFrame":
    """
    A row per trial by number: the columns of `v_trial`, `params` as a column per parameter.

    Nested parameters are named "model/width"; one that clashes with another column is preceded by
    "param/".

    Raises:
        StudydbError: pandas is not installed.
    """
    _require_pandas()
    frame = Growing(
        study.name,
        {
            "number": Integers(),
            "state": Texts(),
            "reason": Texts(),
            "params": Open("param", [*study.space.parameters]),
            "value": Floats(),
            "best_value": Floats(),
            "best_step": Integers(optional=True),
            "last_step": Integers(optional=True),
            "attempt": Integers(),
            "failures": Integers(),
            "losses": Integers(),
            "started_at": Moments(),
            "ended_at": Moments(),
            "duration_s": Floats(),
        },
    )
    for page in listing.trial_pages(database, study):
        columns = dict(zip(page[0]._fields, zip(*page, strict=True), strict=True))
        columns["params"] = [study.space.flatten(params) for params in columns["params"]]
        frame.extend(columns)
    return frame.finish()


def results_dataframe(database: Database, study: Study) -> "pd.DataFrame":
    """
    A row per live result by trial and step: the columns of `v_result`, with one per metric.

    The study's metric is among them; a metric whose name clashes with another column is preceded
    by "metric/".

    Raises:
        StudydbError: pandas is not installed.
    """
    _require_pandas()
    frame = Growing(
        study.name,
        {
            "number": Integers(),
            "step": Integers(),
            "value": Floats(),
            "metrics": Open("metric", [study.objective.metric]),
            "attempt": Integers(),
            "reported_at": Moments(),
        },
    )
    for page in listing.result_pages(database, study):
        columns = dict(zip(page[0]._fields, zip(*page, strict=True), strict=True))
        columns["metrics"] = [
            {**(metrics or {}), study.objective.metric: value}
            for metrics, value in zip(columns["metrics"], columns["value"], strict=True)
        ]
        frame.extend(columns)
    return frame.finish()


class Open:
    """A column per name that turns up in a column of dicts."""

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        """
        Begin empty.

        Args:
            prefix: What precedes a name that clashes with another column, and a "/".
            names: Those that come first, in this order, even if they do not turn up.
        """
        self._prefix, self._first = prefix, names
        self._columns: dict[str, Column] = {name: Values() for name in names}
        self._n_rows = 0

    def extend(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Add a page."""
        for name in set().union(*values) - self._columns.keys():
            self._columns[name] = Values(self._n_rows)
        for name, column in self._columns.items():
            column.extend([each.get(name) for each in values])
        self._n_rows += len(values)

    def finish(self, taken: Iterable[str]) -> dict[str, Any]:
        """All columns by their names; see `spread_names`."""
        names = spread_names(self._first, self._columns, taken=taken, prefix=f"{self._prefix}/")
        return {column: self._columns[name].finish() for name, column in names.items()}


class Growing:
    """A frame of one study that grows by pages; `study` is its first column."""

    def __init__(self, study_name: str, columns: Mapping[str, "Column | Open"]) -> None:
        """Begin with empty columns."""
        self._study_name, self._columns, self._n_rows = study_name, columns, 0

    def extend(self, page: Mapping[str, Sequence[Any]]) -> None:
        """Add a page by columns; what the frame does not have is passed over."""
        for name, column in self._columns.items():
            column.extend(page[name])
        self._n_rows += len(page["number"])

    def finish(self) -> "pd.DataFrame":
        """The frame."""
        import pandas as pd  # noqa: PLC0415  an extra

        study = Texts()
        study.extend([self._study_name] * self._n_rows)
        finished: dict[str, Any] = {"study": study.finish()}
        taken = {"study"} | {
            name for name, column in self._columns.items() if not isinstance(column, Open)
        }
        for name, column in self._columns.items():
            if isinstance(column, Open):
                finished |= column.finish(taken)
            else:
                finished[name] = column.finish()
        return pd.DataFrame(finished)


def _require_pandas() -> None:
    if find_spec("pandas") is None:
        raise StudydbError(
            "Frames need pandas, which is not installed. Run: pip install 'studydb[pandas]'"
        )
