"""Arithmetic of distributions that gives the same digits on every platform."""

import math
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

UNITS = 2**53
"""How many random numbers there are: the multiples of 2**-53 in [0, 1)."""

_LOGARITHMS = Context(prec=25, Emin=-9999, Emax=9999, traps=[])


def from_log_unit(u: float, lower: float, upper: float) -> float:
    """Map a number in [0, 1) to a value between two bounds, uniformly on a logarithmic scale."""
    return float(decimal_from_log_unit(u, lower, upper))


def decimal_from_log_unit(u: float, lower: float, upper: float) -> Decimal:
    """
    Do what `from_log_unit` does, and return about 24 exact digits.

    `decimal` rounds alike on every platform; C libraries differ in the last digit of exp and log.
    """
    start, span = _log_span(lower, upper)
    return _LOGARITHMS.exp(_LOGARITHMS.fma(span, Decimal(u), start))


@lru_cache(maxsize=1024)
def _log_span(lower: float, upper: float) -> tuple[Decimal, Decimal]:
    start = _LOGARITHMS.ln(Decimal(lower))
    return start, _LOGARITHMS.subtract(_LOGARITHMS.ln(Decimal(upper)), start)


def as_float(number: float) -> float:
    """Return the nearest double; for an integer that is too large, infinity of its sign."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def exact(value: float) -> Fraction:
    """Return the exact decimal that `repr` shows: one tenth for 0.1, not the nearest double."""
    return Fraction(repr(value))


def clamp(value: float, lower: float, upper: float) -> float:
    """Replace a value that rounding has put outside the bounds by the nearer bound."""
    return min(max(value, lower), upper)
