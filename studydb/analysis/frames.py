"""
Frames: the stable views as pandas reads them, with a column per parameter or metric.

Rows come in pages as of one moment and columns grow compactly (see `columns`), so that it takes
little more memory than the frame itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from studydb.analysis.columns import Column, Floats, Integers, Moments, Texts, Values
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
            "metrics": Open("metric", [study.metric]),
            "attempt": Integers(),
            "reported_at": Moments(),
        },
    )
    for page in listing.result_pages(database, study):
        columns = dict(zip(page[0]._fields, zip(*page, strict=True), strict=True))
        columns["metrics"] = [
            {**(metrics or {}), study.metric: value}
            for metrics, value in zip(columns["metrics"], columns["value"], strict=True)
        ]
        frame.extend(columns)
    return frame.finish()


class Open:
    """
    A column per name that turns up in a column of dicts.

    Attributes:
        prefix: What precedes a name that clashes with another column.
    """

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        """Begin with the names that come first, in this order; the others follow by alphabet."""
        self.prefix, self._first = prefix, names
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
        """All columns, by names that are not taken."""
        rest = sorted(self._columns.keys() - set(self._first))
        names = _unique([*self._first, *rest], set(taken), f"{self.prefix}/")
        return {
            free: self._columns[name].finish()
            for name, free in zip([*self._first, *rest], names, strict=True)
        }


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


def _unique(names: Sequence[str], taken: set[str], prefix: str) -> list[str]:
    """Precede clashing names, again if need be: "param/state" may be a nested name itself."""
    kept = set(names)
    free: list[str] = []
    for original in names:
        name = original
        while name in taken or (name != original and name in kept):
            name = f"{prefix}{name}"
        taken.add(name)
        free.append(name)
    return free


def _require_pandas() -> None:
    if find_spec("pandas") is None:
        raise StudydbError(
            "Frames need pandas, which is not installed. Run: pip install 'studydb[pandas]'"
        )
