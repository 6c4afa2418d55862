"""
The names of numbers that are not finite, as PostgreSQL writes them.

The database's JSON, and doubles on SQLite, hold such numbers as these texts, and people read them
in tables and exports.
"""

import math

NUMBER_NAMES = ("NaN", "Infinity", "-Infinity")


def number_name(number: float) -> str:
    """Return the name of a number that is not finite."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
