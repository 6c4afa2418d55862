"""Arithmetic of distributions that gives the same digits on every platform."""

from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

UNITS = 2**53
"""How many different numbers a draw can be: doubles in [0, 1) that are multiples of 2**-53."""

_LOGARITHMS = Context(prec=25, Emin=-9999, Emax=9999, traps=[])


def from_log_unit(u: float, lower: float, upper: float) -> float:
    """
    Map a draw from [0, 1) to a value between two bounds, uniformly on a logarithmic scale.

    `decimal` rounds alike everywhere; the C library's exp and log differ in the last digit.
    """
    start, span = _log_span(lower, upper)
    return float(_LOGARITHMS.exp(_LOGARITHMS.fma(span, Decimal(u), start)))


@lru_cache(maxsize=1024)
def _log_span(lower: float, upper: float) -> tuple[Decimal, Decimal]:
    start = _LOGARITHMS.ln(Decimal(lower))
    return start, _LOGARITHMS.subtract(_LOGARITHMS.ln(Decimal(upper)), start)


def exact(value: float) -> Fraction:
    """The decimal that people see: 0.1 is one tenth, not the double nearest to it."""
    return Fraction(repr(value))


def clamp(value: float, lower: float, upper: float) -> float:
    """Move a value that rounding put outside the bounds back to the nearer one."""
    return min(max(value, lower), upper)
