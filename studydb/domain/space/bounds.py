"""Bounds of distributions: what they must be, and the arithmetic that stays exact between them."""

from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from studydb.domain.canonical import plain
from studydb.domain.errors import InvalidSpec

UNITS = 2**53
"""How many different numbers a draw can be: doubles in [0, 1) that are multiples of 2**-53."""

_INTEGER_BOUND = 2**63
_LOGARITHMS = Context(prec=25, Emin=-9999, Emax=9999, traps=[])


def is_number(value: Any) -> bool:
    """Whether an int or a float; a bool is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integral(value: Any) -> bool:
    """Whether a number without a fraction: 3 and 3.0."""
    return is_number(value) and (isinstance(value, int) or value.is_integer())


def read_float(value: Any, *, name: str, of: str) -> float:
    """
    Read a bound as a finite float.

    Raises:
        InvalidSpec: It is no number, NaN or infinite.
    """
    number = plain(value, where=f"The {name} of {of}")
    if not is_number(number):
        raise InvalidSpec(f"The {name} of {of} is {number!r}; it must be a number.")
    try:
        return float(number)
    except OverflowError:
        raise InvalidSpec(f"The {name} of {of} is too large for a double; lower it.") from None


def read_int(value: Any, *, name: str, of: str) -> int:
    """
    Read a bound as an integer; 1e3 is one too.

    Raises:
        InvalidSpec: It has a fraction, is no number, or does not fit into 64 bits.
    """
    number = plain(value, where=f"The {name} of {of}")
    if not is_integral(number):
        raise InvalidSpec(f"The {name} of {of} is {number!r}; it must be an integer.")
    if abs(number) >= _INTEGER_BOUND:
        raise InvalidSpec(f"The {name} of {of} is {number!r}; it must fit into 64 bits.")
    return int(number)


def check_order(lower: float, upper: float, *, of: object) -> None:
    """
    Check that there is room between the bounds.

    Raises:
        InvalidSpec: There is none.
    """
    if lower >= upper:
        raise InvalidSpec(
            f"{of} has a lower bound that is not below the upper one; "
            "swap them, or give a constant if there is only one value."
        )


def check_positive(lower: float, *, of: object) -> None:
    """
    Check that there is a logarithm.

    Raises:
        InvalidSpec: The lower bound is 0 or below.
    """
    if lower <= 0:
        raise InvalidSpec(f"{of} needs a lower bound above 0, because it is logarithmic.")


def check_size(size: int, *, of: object) -> None:
    """
    Check that every value can be drawn.

    Raises:
        InvalidSpec: There are more values than draws differ.
    """
    if size > UNITS:
        raise InvalidSpec(f"{of} has more than 2**53 values, too many to draw each; narrow it.")


def from_log_unit(u: float, lower: float, upper: float) -> float:
    """
    Put a draw from [0, 1) between two bounds, evenly on a logarithmic scale.

    `decimal` is rounded correctly everywhere; the C library's exp and log differ in the last digit.
    """
    start, span = _log_span(lower, upper)
    return float(_LOGARITHMS.exp(_LOGARITHMS.fma(span, Decimal(u), start)))


@lru_cache(maxsize=1024)
def _log_span(lower: float, upper: float) -> tuple[Decimal, Decimal]:
    start = _LOGARITHMS.ln(Decimal(lower))
    return start, _LOGARITHMS.subtract(_LOGARITHMS.ln(Decimal(upper)), start)


def exact(value: float) -> Fraction:
    """The decimal that people see: 0.1 is a tenth, not the double nearest to it."""
    return Fraction(repr(value))


def clamp(value: float, lower: float, upper: float) -> float:
    """Move a value that rounding put outside back to the bound."""
    return min(max(value, lower), upper)
