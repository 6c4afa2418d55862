"""
Columns of a data frame that are filled page by page.

Numbers are kept in numpy arrays: a Python float in a list takes 32 bytes, a double in an array 8. A
frame of 500,000 results with ten columns takes less than 300 MB.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from studydb.domain.canonical import shortest_integer
from studydb.domain.space.exact_arithmetic import as_float

if TYPE_CHECKING:
    import pandas as pd

LARGEST_EXACT = 2**53
"""Every integer up to this number is exact as a double."""

_FIRST_AMBIGUOUS = 10**16
"""
PostgreSQL returns a double of this absolute value or more as an integer, such as 1e16 as
10000000000000000. So it is not known whether such an integer was a double.
"""

_INT64 = 2**63
_NONE = type(None)


class Column(Protocol):
    """A column that is filled page by page; None is a missing value."""

    def extend(self, values: Sequence[Any]) -> None:
        """Add a page."""

    def finish(self) -> Any:
        """Return all values, as an array, an index or a series for a DataFrame."""


class Floats:
    """Doubles; a missing value becomes NaN."""

    def __init__(self) -> None:
        self._pages: list[npt.NDArray[np.float64]] = []

    def extend(self, values: Sequence[float | None]) -> None:
        self._pages.append(np.array(values, dtype=np.float64))

    def finish(self) -> npt.NDArray[np.float64]:
        return np.concatenate([np.empty(0), *self._pages])


class Integers:
    """
    Integers of 64 bits.

    Args:
        optional: Whether values can be missing. If so, the type is pandas' Int64; if not, int64.
    """

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional
        self._pages: list[npt.NDArray[np.int64]] = []
        self._masks: list[npt.NDArray[np.bool_]] = []

    def extend(self, values: Sequence[int | None]) -> None:
        if not self._optional:
            self._pages.append(np.array(values, dtype=np.int64))
            return
        self._pages.append(np.array([value or 0 for value in values], dtype=np.int64))
        self._masks.append(np.array([value is None for value in values], dtype=np.bool_))

    def finish(self) -> "npt.NDArray[np.int64] | pd.arrays.IntegerArray":
        values = np.concatenate([np.empty(0, np.int64), *self._pages])
        if not self._optional:
            return values
        import pandas as pd  # noqa: PLC0415  pandas is optional

        return pd.arrays.IntegerArray(values, np.concatenate([np.empty(0, np.bool_), *self._masks]))


class Timestamps:
    """Times in UTC with microseconds; a missing value becomes NaT."""

    def __init__(self) -> None:
        self._pages: list[Any] = []

    def extend(self, values: Sequence[Any]) -> None:
        import pandas as pd  # noqa: PLC0415  pandas is optional

        self._pages.append(pd.to_datetime(values, utc=True).as_unit("us"))

    def finish(self) -> "pd.DatetimeIndex":
        import pandas as pd  # noqa: PLC0415  pandas is optional

        empty = pd.DatetimeIndex([], dtype="datetime64[us, UTC]")
        return empty.append(self._pages)


class Texts:
    """Texts; None is a missing text. The column's dtype depends on the version of pandas."""

    def __init__(self) -> None:
        self._values: list[str | None] = []
        self._known: dict[str | None, str | None] = {}

    def extend(self, values: Sequence[str | None]) -> None:
        """Add a page; equal texts share one object."""
        self._values += [self._known.setdefault(value, value) for value in values]

    def finish(self) -> "pd.Series[Any]":
        import pandas as pd  # noqa: PLC0415  pandas is optional

        return pd.Series(self._values, dtype=object if pd.__version__.startswith("2.") else "str")


class Values:
    """
    Values of any JSON type.

    `finish` chooses the narrowest type that keeps every value: bool, int64, double, text or object.
    If values are missing, the type for integers is Int64, and the type for booleans is boolean.
    If all values are missing, the column has doubles (NaN).

    An integer fits a double if it is exact as a double, or if it is the shortest decimal of one,
    such as 10**23 for 1e23. The latter integers from 10**16 on may be doubles that PostgreSQL has
    returned as integers. If all numbers fit, and some of them are doubles, or may be doubles, or
    have more than 64 bits, then all become doubles. Both databases so give the same column.

    Args:
        n_missing: The number of rows before this column's first value.
    """

    def __init__(self, n_missing: int = 0) -> None:
        self._types: set[type] = {_NONE} if n_missing else set()
        self._unfit = self._ambiguous = self._huge = False
        self._pages: list[Any] = [[None] * n_missing]

    def extend(self, values: Sequence[Any]) -> None:
        types = set(map(type, values))
        numbers = [abs(value) for value in values if type(value) is int] if int in types else [0]
        if (largest := max(numbers)) > LARGEST_EXACT and not self._unfit:
            self._look_at([number for number in numbers if number > LARGEST_EXACT])
        self._huge = self._huge or largest >= _INT64
        self._types |= types
        compact = types == {float} or (types == {int} and not self._huge)
        self._pages.append(np.array(values) if compact else list(values))

    def _look_at(self, numbers: Sequence[int]) -> None:
        """Look at integers above `LARGEST_EXACT`: do they fit doubles, and may they be doubles?"""
        for number in numbers:
            double = as_float(number)
            if math.isfinite(double) and shortest_integer(double) == number:
                self._ambiguous = self._ambiguous or number >= _FIRST_AMBIGUOUS
            elif double != number:  # Python compares the exact numbers
                self._unfit = True
                return

    def finish(self) -> Any:
        kinds = self._types - {_NONE}
        if kinds == {int} and not self._huge and (self._unfit or not self._ambiguous):
            return self._fill(Integers(optional=_NONE in self._types))
        if kinds <= {int, float} and not self._unfit:
            return self._fill(Floats())
        if kinds == {str}:
            return self._fill(Texts())
        return self._objects("boolean" if kinds == {bool} else "object")

    def _fill(self, column: Column) -> Any:
        for page in self._pages:
            column.extend(page)
        return column.finish()

    def _objects(self, dtype: str) -> "pd.Series[Any]":
        import pandas as pd  # noqa: PLC0415  pandas is optional

        pages = (page if isinstance(page, list) else page.tolist() for page in self._pages)
        values = [value for page in pages for value in page]
        if dtype == "boolean" and _NONE not in self._types:
            dtype = "bool"
        # Make an array first, because pandas would read a list of lists as rows.
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return pd.Series(array, dtype=dtype)
