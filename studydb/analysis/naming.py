"""What the columns are called that take the place of `params` or `metrics`."""

from collections.abc import Iterable, Sequence


def spread_names(
    first: Sequence[str], others: Iterable[str], *, taken: Iterable[str], prefix: str
) -> dict[str, str]:
    """
    Name a column per parameter or metric.

    Args:
        first: Names that come first, in this order; the others follow by alphabet.
        others: May repeat those of `first`.
        taken: The other columns of the table.
        prefix: What precedes a name that clashes with one of them: "param/state".

    Returns:
        The column's name by the parameter's or metric's. A name that is its column's own keeps it,
        even if another, once preceded, would be the same: that one is preceded again.
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
