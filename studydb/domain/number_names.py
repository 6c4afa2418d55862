"""
The names of numbers that are not finite, as PostgreSQL writes them.

SQLite and PostgreSQL store these names in JSON columns. SQLite also stores them in columns of
metrics' values (`db.types.Number`). People read the names in tables and exports.
"""

import math

NUMBER_NAMES = ("NaN", "Infinity", "-Infinity")


def number_name(number: float) -> str:
    """Return the name of a number that is not finite."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
