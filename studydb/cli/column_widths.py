"""
Choose the columns of a table on a terminal, and their widths; break long cells into lines.

A word that is a number is never broken: the digits of a long number on two lines could be read as
two numbers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MOST_UNBROKEN = 20
"""A cell of up to this many characters stays on one line, if the line has room for all columns."""

LEAST_WIDTH = 8
"""The least width to which a column is narrowed, unless the column has a longer number."""

LONGEST_NUMBER = 40
"""A number of up to this many characters is not broken; an integer of 128 bits has 39 digits."""

GAP = 2
"""How many characters of a line lie between two columns."""

_NUMBER = re.compile(r"[\[{(\"]*[-+]?(\d[\d.,:eE%T+-]*|Infinity|NaN)[\]}),;\"Z]*")
"""
A word that is a number, a date or a time, with the brackets and the comma that a list puts around.
"""


class ColumnWidth(NamedTuple):
    """
    The widths of a column in characters.

    Attributes:
        least: The width at which no number is broken.
        wanted: The width at which no cell of up to `MOST_UNBROKEN` characters is broken.
        longest: The width at which neither a cell nor the name is broken.
    """

    least: int
    wanted: int
    longest: int


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def measure(name: str, cells: Sequence[str]) -> ColumnWidth:
    """Measure a column with this name and these cells."""
    longest_cell = max(map(text_width, cells))
    number = max(map(_longest_number, cells))
    part = max(map(text_width, name.split("_")))  # a name is broken at underscores
    wanted = max(number, min(MOST_UNBROKEN, max(part, longest_cell)))
    least = max(number, min(LEAST_WIDTH, wanted))
    return ColumnWidth(least, wanted, max(text_width(name), longest_cell))


def fit(
    columns: Mapping[str, ColumnWidth], spare: Sequence[str], terminal_width: int
) -> tuple[dict[str, int], list[str]]:
    """
    Choose the columns that a line has room for.

    Args:
        spare: Columns to leave out first, in this order.

    Returns:
        The width of each column that is kept, and the names of the columns that are left out. One
        column is kept even if it is wider than the line.
    """
    omitted = left_out({name: each.wanted for name, each in columns.items()}, spare, terminal_width)
    kept = {name: each for name, each in columns.items() if name not in omitted}
    omitted += _last_that_do_not_fit(kept, terminal_width)
    kept = {name: each for name, each in kept.items() if name not in omitted}
    return _widened(kept, _narrowed(kept, terminal_width), terminal_width), omitted


def line_width(widths: Iterable[int]) -> int:
    """Return the width of a line whose columns have these widths."""
    return sum(width + GAP for width in widths)


def break_long_words(cell: str, width: int) -> str:
    """Break "path=0.1" after the "=" where it is longer than a line, so that 0.1 stays whole."""
    if text_width(cell) <= width:
        return cell
    words = (
        word.replace("=", "=\n", 1) if "=" in word and text_width(word) > width else word
        for word in cell.split(" ")
    )
    return " ".join(words)


def break_name(name: str, width: int) -> str:
    """Break a name into lines of at most `width`; a line's end stands for an underscore."""
    lines: list[str] = []
    for part in name.split("_"):
        if lines and text_width(f"{lines[-1]}_{part}") <= width:
            lines[-1] += f"_{part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def left_out(widths: Mapping[str, int], spare: Sequence[str], terminal_width: int) -> list[str]:
    """Find the columns to leave out, in the order of `spare`, until a line has room."""
    free_width = terminal_width - line_width(widths.values())
    omitted: list[str] = []
    for name in spare:
        if free_width < 0 and name in widths:  # a caller may name columns that this table lacks
            omitted.append(name)
            free_width += widths[name] + GAP
    return omitted


def _longest_number(cell: str) -> int:
    words = cell.replace("=", "= ").split()
    numbers = (len(word) for word in words if _NUMBER.fullmatch(word))
    return max((length for length in numbers if length <= LONGEST_NUMBER), default=0)


def _last_that_do_not_fit(columns: Mapping[str, ColumnWidth], terminal_width: int) -> list[str]:
    """Find the last columns that do not fit even if all columns have their least width."""
    names, least = list(columns), [each.least for each in columns.values()]
    n_fitting = len(names)
    while n_fitting > 1 and line_width(least[:n_fitting]) > terminal_width:
        n_fitting -= 1
    return names[n_fitting:]


def _narrowed(columns: Mapping[str, ColumnWidth], terminal_width: int) -> dict[str, int]:
    """Narrow the widest columns, down to their least widths, until a line fits."""
    widths = {name: each.wanted for name, each in columns.items()}
    for _ in range(line_width(widths.values()) - terminal_width):
        wide = [name for name, each in columns.items() if widths[name] > each.least]
        if not wide:
            break
        widths[max(wide, key=lambda name: widths[name])] -= 1
    return widths


def _widened(
    columns: Mapping[str, ColumnWidth], widths: Mapping[str, int], terminal_width: int
) -> dict[str, int]:
    """Give a line's free width, from the left, to columns narrower than their longest text."""
    free_width = terminal_width - line_width(widths.values())
    widened = dict(widths)
    for name, width in widths.items():
        more = max(0, min(free_width, columns[name].longest - width))
        widened[name] += more
        free_width -= more
    return widened
