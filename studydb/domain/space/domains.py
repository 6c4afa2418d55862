"""
Domains: the values that a parameter can take, and how a number in [0, 1) is mapped to one of them.

The mapping uses only operations that every platform rounds alike (logarithms by `decimal`). So a
draw gives the same params on every host, in every version of Python and numpy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

from studydb.domain.canonical import canonical_json, is_integral, is_number, plain
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.exact_arithmetic import (
    UNITS,
    as_float,
    clamp,
    decimal_from_log_unit,
    exact,
    from_log_unit,
)
from studydb.domain.specs.spec import Spec

KIND = "$"
"""The key of a distribution's name in JSON; a parameter's name must not begin with "$"."""


class Domain(Spec, ABC):
    """The values that one parameter can take; domains of one class with equal options are equal."""

    kind_key: ClassVar[str] = KIND

    @abstractmethod
    def from_unit(self, u: float) -> Any:
        """
        Map a number to a value, monotonically: 0 gives the first value of the domain.

        Args:
            u: The random number in [0, 1), a multiple of 2**-53.
        """

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Whether a value belongs to the domain; 3 and 3.0 are equal, True and 1 are not."""

    @abstractmethod
    def cast(self, value: Any) -> Any:
        """Convert a value of the domain to the type of samples: 3 becomes 3.0 for `uniform`."""

    @property
    def distinct(self) -> Sequence[Any] | None:
        """The values, each once; None if they are floats without a step."""
        return None

    def __str__(self) -> str:
        """Return the call that users write in Python and on the command line."""
        _, *arguments = self.to_json().values()
        return f"{self.kind}({', '.join(map(repr, arguments))})"


class Enumerable(Domain):
    """A domain with a finite number of values, which `GridSearch` enumerates."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many values there are; at most 2**53."""

    @abstractmethod
    def at(self, index: int) -> Any:
        """Return the value at a 0-based index: numbers ascend, a choice has the user's order."""

    def from_unit(self, u: float) -> Any:
        return self.at(int(u * UNITS) * self.size // UNITS)

    @property
    def distinct(self) -> Sequence[Any]:
        return _Listed(self)


class _Listed(Sequence[Any]):
    """The values of an enumerable domain, each made when it is read."""

    def __init__(self, domain: Enumerable) -> None:
        self._domain = domain

    def __len__(self) -> int:
        return self._domain.size

    def __getitem__(self, index: Any) -> Any:
        return self._domain.at(index)


@dataclass(frozen=True)
class Real(Domain):
    """Floats between two bounds. An enqueued value may equal either bound."""

    lower: float
    upper: float

    def _check(self) -> None:
        for name in self.arguments():
            given, subject = getattr(self, name), f"{self.kind}.{name}"
            if not isinstance(given, int) and is_number(given) and not math.isfinite(given):
                raise InvalidSpec(f"{subject} is {given}; it must be a finite number.")
            object.__setattr__(self, name, float(plain(given, subject=subject)))
        _check_order(self)

    def contains(self, value: Any) -> bool:
        """Compare doubles, because a database may return the double 1e23 as the integer 10**23."""
        return is_number(value) and self.lower <= as_float(value) <= self.upper

    def cast(self, value: Any) -> float:
        return float(value)


@dataclass(frozen=True)
class Uniform(Real):
    """See `uniform`."""

    kind: ClassVar[str] = "uniform"

    def _check(self) -> None:
        super()._check()
        if math.isinf(self.upper - self.lower):
            raise InvalidSpec(f"{self} is wider than a double can hold; narrow its bounds.")

    def from_unit(self, u: float) -> float:
        """Map u in [0, 1) to [lower, upper); because of rounding, the result can be `upper`."""
        return clamp(self.lower + u * (self.upper - self.lower), self.lower, self.upper)


@dataclass(frozen=True)
class LogUniform(Real):
    """See `loguniform`."""

    kind: ClassVar[str] = "loguniform"

    def _check(self) -> None:
        super()._check()
        _check_positive(self)

    def from_unit(self, u: float) -> float:
        """Map 0 to `lower`, and 0.5 to the geometric mean of the bounds."""
        return clamp(from_log_unit(u, self.lower, self.upper), self.lower, self.upper)


@dataclass(frozen=True)
class QUniform(Real, Enumerable):
    """See `quniform`."""

    kind: ClassVar[str] = "quniform"
    q: float

    def _check(self) -> None:
        super()._check()
        if self.q <= 0:
            raise InvalidSpec(f"{self} has a step that is not positive; give q above 0.")
        if self.size < 1:
            raise InvalidSpec(f"{self} holds no multiple of {self.q!r}; widen it or lower q.")
        _check_size(self, self.size)

    @cached_property
    def _step(self) -> Fraction:
        return exact(self.q)

    @cached_property
    def _first(self) -> int:
        return math.ceil(exact(self.lower) / self._step)

    @cached_property
    def size(self) -> int:
        return math.floor(exact(self.upper) / self._step) - self._first + 1

    def at(self, index: int) -> float:
        """Compute a multiple exactly: 0.3, not 0.30000000000000004."""
        return float((self._first + index) * self._step)

    def contains(self, value: Any) -> bool:
        """Whether a value is a multiple of q within the bounds; rounding errors are tolerated."""
        if not (is_number(value) and self.lower - self.q <= value <= self.upper + self.q):
            return False
        return math.isclose(self.cast(value), value, rel_tol=1e-12, abs_tol=1e-9 * self.q)

    def cast(self, value: Any) -> float:
        """Return the nearest multiple within the bounds."""
        index = round(exact(value) / self._step) - self._first
        return self.at(min(max(index, 0), self.size - 1))


@dataclass(frozen=True)
class Integer(Domain):
    """Integers between two bounds, both included."""

    lower: int
    upper: int

    def _check(self) -> None:
        _check_order(self)
        _check_size(self, self.upper - self.lower + 1)

    def contains(self, value: Any) -> bool:
        return is_integral(value) and self.lower <= value <= self.upper

    def cast(self, value: Any) -> int:
        return int(value)


@dataclass(frozen=True)
class RandInt(Integer, Enumerable):
    """See `randint`."""

    kind: ClassVar[str] = "randint"

    @property
    def size(self) -> int:
        return self.upper - self.lower + 1

    def at(self, index: int) -> int:
        return self.lower + index


@dataclass(frozen=True)
class LogRandInt(Integer):
    """See `lograndint`; not enumerable, because a grid would take all integers equally often."""

    kind: ClassVar[str] = "lograndint"

    def _check(self) -> None:
        super()._check()
        _check_positive(self)

    def from_unit(self, u: float) -> int:
        """Map u in [0, 1) to the floor of a log-uniform value from [lower, upper + 1)."""
        # A double cannot hold each integer above 2**53. Below, its rounding gives 16, not 15.999….
        from_unit = from_log_unit if self.upper < UNITS else decimal_from_log_unit
        drawn = math.floor(from_unit(u, self.lower, self.upper + 1))
        return min(max(drawn, self.lower), self.upper)

    @property
    def distinct(self) -> Sequence[int]:
        return range(self.lower, self.upper + 1)


@dataclass(frozen=True, eq=False)
class Choice(Enumerable):
    """See `choice`."""

    kind: ClassVar[str] = "choice"
    values: Sequence[Any]

    def _check(self) -> None:
        object.__setattr__(self, "values", tuple(_read_choices(self.values)))

    def __eq__(self, other: object) -> bool:
        """Compare canonical forms, because Python takes [True] and [1] for equal."""
        if not isinstance(other, Choice):
            return NotImplemented
        return canonical_json(self.values) == canonical_json(other.values)

    def __hash__(self) -> int:
        """Hash the canonical form, because values may be dicts and lists."""
        return hash((self.kind, canonical_json(self.values)))

    def to_json(self) -> dict[str, Any]:
        """Return the stored form; a dict among the values is never read as a distribution."""
        return {KIND: self.kind, "values": list(self.values)}

    @property
    def size(self) -> int:
        """The number of values; a value given twice counts twice."""
        return len(self.values)

    def at(self, index: int) -> Any:
        """Return a copy of the value, because it may be a list or a dict."""
        return plain(self.values[index], subject="A choice")

    @property
    def distinct(self) -> Sequence[Any]:
        """The values, each once, although a value may be listed twice to make it more likely."""
        return [self.at(index) for index in sorted(self._indexes.values())]

    def contains(self, value: Any) -> bool:
        return canonical_json(value) in self._indexes

    def cast(self, value: Any) -> Any:
        """Return the listed value that equals the given one; the given value if none equals it."""
        index = self._indexes.get(canonical_json(value))
        return value if index is None else self.at(index)

    @cached_property
    def mixes_booleans(self) -> bool:
        """
        Whether Python may take two different values for equal, as it takes True for 1.

        The property may also be true because of the texts among the values.
        """
        as_numbers = {text.replace("true", "1").replace("false", "0") for text in self._indexes}
        return len(as_numbers) < len(self._indexes)

    @cached_property
    def _indexes(self) -> dict[str, int]:
        backwards = reversed(list(enumerate(self.values)))
        return {canonical_json(value): index for index, value in backwards}


def _check_order(domain: Real | Integer) -> None:
    if domain.lower >= domain.upper:
        raise InvalidSpec(
            f"{domain} has a lower bound that is not below the upper one; "
            "swap them, or give a constant if there is only one value."
        )


def _check_positive(domain: Real | Integer) -> None:
    if domain.lower <= 0:
        raise InvalidSpec(f"{domain} needs a lower bound above 0, because it is logarithmic.")


def _check_size(domain: Domain, size: int) -> None:
    if size > UNITS:
        raise InvalidSpec(f"{domain} has more than 2**53 values, the limit; narrow its bounds.")


def _read_choices(values: Any) -> list[Any]:
    if not isinstance(values, list | tuple | range) and hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple | range):
        raise InvalidSpec(
            f"choice was given {values!r}, which is not a list; give a list of values, as in "
            "choice(['relu', 'tanh'])."
        )
    if not values:
        raise InvalidSpec("choice was given an empty list; give at least one value.")
    return [plain(value, subject="A value of choice") for value in values]
