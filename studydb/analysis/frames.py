"""
The views `v_trial` and `v_result` as DataFrames, with a column per parameter or metric.

Rows are read in pages of one snapshot. Columns are kept in compact arrays (see `columns.py`), so
that building a frame takes little more memory than the frame itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from studydb.analysis.columns import Column, Floats, Integers, Texts, Timestamps, Values
from studydb.analysis.expanding import expanded_names
from studydb.db import Database
from studydb.domain.errors import StudydbError
from studydb.domain.records import Study
from studydb.operations import pages

if TYPE_CHECKING:
    import pandas as pd


def trials_dataframe(
    database: Database, study: Study, *, invalidated: bool = False
) -> "pd.DataFrame":
    """
    Read `v_trial`: one row per trial, ordered by number, with a column per parameter.

    Nested parameters are named as in "model/width". A name that clashes with another column gets
    the prefix "param/".

    Args:
        invalidated: Whether to read invalidated trials, too.

    Raises:
        StudydbError: pandas is not installed.
    """
    frame = FrameBuilder(
        study.name,
        {
            "number": Integers(),
            "state": Texts(),
            "reason": Texts(),
            "params": ExpandedColumn("param", [*study.space.parameters]),
            "value": Floats(),
            "best_value": Floats(),
            "best_step": Integers(optional=True),
            "last_step": Integers(optional=True),
            "attempt": Integers(),
            "failures": Integers(),
            "losses": Integers(),
            "started_at": Timestamps(),
            "ended_at": Timestamps(),
            "duration_s": Floats(),
            "name": Texts(),
            "tags": Values(),
            "changed": Values(),
            "parent": Integers(optional=True),
            "invalidated_at": Timestamps(),
            "resources": Values(),
        },
    )
    space = study.space
    for page in pages.trial_pages(database, study, invalidated=invalidated):
        frame.extend(
            page,
            params=[space.restore_floats_by_path(space.flatten(row.params)) for row in page],
            changed=[space.restore_floats_by_path(row.changed) for row in page],
        )
    return frame.finish()


def results_dataframe(
    database: Database, study: Study, *, invalidated: bool = False
) -> "pd.DataFrame":
    """
    Read `v_result`: one row per live result, ordered by trial and step, with a column per metric.

    The values of the study's metric appear twice: as `value`, and in the metric's own column. A
    name that clashes with another column gets the prefix "metric/".

    Args:
        invalidated: Whether to read the results of invalidated trials, too.

    Raises:
        StudydbError: pandas is not installed.
    """
    frame = FrameBuilder(
        study.name,
        {
            "number": Integers(),
            "step": Integers(),
            "value": Floats(),
            "metrics": ExpandedColumn("metric", [study.objective.metric]),
            "attempt": Integers(),
            "reported_at": Timestamps(),
        },
    )
    for page in pages.result_pages(database, study, invalidated=invalidated):
        metrics = [{**(row.metrics or {}), study.objective.metric: row.value} for row in page]
        frame.extend(page, metrics=metrics)
    return frame.finish()


class ExpandedColumn:
    """Replaces a column of dicts by a column for each key."""

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        """
        Start with the columns that every frame of the study has.

        Args:
            prefix: The prefix, without its "/", for a name that clashes with another column.
            names: The columns that come first, in this order, even if no row has them.
        """
        self._prefix, self._first = prefix, names
        self._columns: dict[str, Column] = {name: Values() for name in names}
        self._n_rows = 0

    def extend(self, values: Sequence[Mapping[str, Any]]) -> None:
        for name in set().union(*values) - self._columns.keys():
            self._columns[name] = Values(self._n_rows)
        for name, column in self._columns.items():
            column.extend([row.get(name) for row in values])
        self._n_rows += len(values)

    def finish(self, taken: Iterable[str]) -> dict[str, Any]:
        """Return all columns by their names; see `expanded_names`."""
        names = expanded_names(self._first, self._columns, taken=taken, prefix=f"{self._prefix}/")
        return {column: self._columns[name].finish() for name, column in names.items()}


class FrameBuilder:
    """
    Builds a frame of one study page by page; the first column is `study`.

    Raises:
        StudydbError: pandas is not installed.
    """

    def __init__(self, study_name: str, columns: Mapping[str, "Column | ExpandedColumn"]) -> None:
        if find_spec("pandas") is None:
            raise StudydbError(
                "Frames need pandas, which is not installed. Run: pip install 'studydb[pandas]'"
            )
        self._study_name, self._columns, self._n_rows = study_name, columns, 0

    def extend(self, rows: Sequence[Any], **replaced: Sequence[Any]) -> None:
        """Add a page of rows; a column in `replaced` replaces the rows' column of the same name."""
        if not rows:
            return
        page = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True)) | replaced
        for name, column in self._columns.items():
            column.extend(page[name])
        self._n_rows += len(rows)

    def finish(self) -> "pd.DataFrame":
        import pandas as pd  # noqa: PLC0415  pandas is optional

        study = Texts()
        study.extend([self._study_name] * self._n_rows)
        finished: dict[str, Any] = {"study": study.finish()}
        taken = {"study"} | {
            name for name, column in self._columns.items() if not isinstance(column, ExpandedColumn)
        }
        for name, column in self._columns.items():
            if isinstance(column, ExpandedColumn):
                finished |= column.finish(taken)
            else:
                finished[name] = column.finish()
        return pd.DataFrame(finished)
