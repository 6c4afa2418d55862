"""Replace the column `params` by a column per parameter, and `metrics` by one per metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def expanded_names(
    first: Sequence[str], others: Iterable[str], *, taken: Iterable[str], prefix: str
) -> dict[str, str]:
    """
    Name a column per parameter or metric.

    Args:
        first: Names that come first, in this order; other names follow in alphabetical order.
        others: Further names, which may include those in `first`.
        taken: The names of the table's other columns.
        prefix: The text that is put before a name that clashes with another column, for example
            "param/" in "param/state". The prefix is repeated until the name is unique.

    Returns:
        The name of the column of each parameter or metric.
    """
    names = [*dict.fromkeys(first), *sorted(set(others) - set(first))]
    used, kept = set(taken), set(names)
    columns: dict[str, str] = {}
    for name in names:
        column = name
        while column in used or (column != name and column in kept):
            column = f"{prefix}{column}"
        used.add(column)
        columns[name] = column
    return columns


def expand(
    columns: Sequence[str], column: str, prefix: str, first: Sequence[str], others: Iterable[str]
) -> tuple[list[str], Callable[[Mapping[str, Any]], list[Any]]]:
    """
    Replace a column of dicts by a column per key, as the data frames do; see `expanded_names`.

    Args:
        columns: All columns of the rows, in order.
        column: The column that holds dicts.

    Returns:
        The names of all columns after the replacement, and a function that returns their values
        for a row. A key that the row's dict lacks gives None.
    """
    position = columns.index(column)
    before, after = columns[:position], columns[position + 1 :]
    names = expanded_names(first, others, taken=[*before, *after], prefix=prefix)

    def read(row: Mapping[str, Any]) -> list[Any]:
        values = row[column]
        return [
            *(row[name] for name in before),
            *(values.get(name) for name in names),
            *(row[name] for name in after),
        ]

    return [*before, *names.values(), *after], read
