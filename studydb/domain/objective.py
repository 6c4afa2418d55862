"""The objective of a study: the metric by which its trials are compared."""

import math
from typing import Any, Self

from msgspec import Struct

from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Mode
from studydb.domain.text.names import check_metric_name


class Objective(Struct, frozen=True):
    """
    A metric, and whether its smaller or larger values are better.

    Attributes:
        metric: The metric's name; nested names are joined by "/".
    """

    metric: str
    mode: Mode

    @classmethod
    def read(cls, metric: Any, mode: Any) -> Self:
        """
        Check the metric and mode that a user gives.

        Raises:
            InvalidName: The metric's name breaks a rule for names.
            InvalidSpec: The mode is neither "min" nor "max".
        """
        name = check_metric_name(metric)
        try:
            return cls(name, Mode(mode))
        except ValueError:
            raise InvalidSpec(f"mode is {mode!r}; it must be 'min' or 'max'.") from None

    def score(self, value: float) -> float:
        """
        Turn a value into a score; a lower score is better.

        Returns:
            A number that every database sorts alike: NaN becomes +Inf (worst), -0.0 becomes 0.0.
        """
        if math.isnan(value):
            return math.inf
        return (value if self.mode is Mode.MIN else -value) + 0.0

    def rank(self, value: float) -> tuple[float, bool]:
        """Turn a value into a sort key: a lower key is better, and NaN has the highest key."""
        return self.score(value), math.isnan(value)

    def __str__(self) -> str:
        return f"{self.metric} ({self.mode})"
