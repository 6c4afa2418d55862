"""
Print tables, named values and next commands for people, and JSON and CSV for programs.

On a terminal, a table of up to 500 rows is drawn by the library `rich`. Any other table has plain
columns without colours. No cell is cut. Doubles have six significant digits in tables, and all
digits in JSON and CSV.
"""

import csv
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import click

from studydb.cli.formatting import csv_cell, plain, table_cell
from studydb.domain.life.states import Status
from studydb.domain.number_names import NUMBER_NAMES
from studydb.domain.text.display import visible

MOST_MEASURED_ROWS = 5_000
"""How many rows at the beginning of a table determine the widths of its columns."""

MOST_RICH_ROWS = 500
"""A table with more rows is printed without rich, because rich takes a millisecond a row."""

MOST_UNBROKEN = 20
"""
On a terminal a cell of up to this many characters stays on one line, unless the terminal has no
room for all columns.
"""

LEAST_WIDTH = 8
"""The least width to which a column is narrowed on a terminal that has no room for all columns."""

NUMBERS = (int, float)


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    form: str,
    noun: str = "rows",
    spare: Sequence[str] = (),
) -> None:
    """
    Print a listing.

    Args:
        columns: One name per value of a row.
        form: "table", "json" (a list of objects) or "csv" (with a header).
        noun: What the rows are, such as "trials". For an empty table, "no trials" is printed.
        spare: Columns that a rich table leaves out on a narrow terminal, in this order.
    """
    if form == "json":
        _print_objects(dict(zip(columns, row, strict=True)) for row in rows)
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(csv_cell, columns))
        writer.writerows([csv_cell(value) for value in row] for row in rows)
    else:
        rows = iter(rows)
        listed = list(islice(rows, MOST_MEASURED_ROWS))
        if listed:
            print_table(columns, listed, rows, spare=spare)
        else:
            click.echo(f"no {noun}")


def _print_objects(objects: Iterable[Mapping[str, Any]]) -> None:
    before = "["
    for each in objects:
        text = json.dumps(plain(each), indent=2, allow_nan=False)
        click.echo(f"{before}\n  " + text.replace("\n", "\n  "), nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(plain(document), indent=2, allow_nan=False))


def print_object(fields: Mapping[str, Any], *, form: str) -> None:
    """Print one object as JSON, or as CSV of one row."""
    if form == "json":
        print_json(fields)
    else:
        print_rows(tuple(fields), [tuple(fields.values())], form=form)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    more: Iterable[Sequence[Any]] = (),
    *,
    spare: Sequence[str] = (),
) -> None:
    """
    Print a table of one or more rows.

    Args:
        more: Rows to print after `rows`; they do not widen the columns. A table that rich draws
            leaves them out, so give them only if `rows` has more than `MOST_RICH_ROWS` rows.
        spare: Columns that a rich table leaves out on a narrow terminal, in this order.
    """
    align_right = [
        all(
            value is None or isinstance(value, NUMBERS) or value in NUMBER_NAMES for value in column
        )
        for column in zip(*rows, strict=True)
    ]
    if sys.stdout.isatty() and len(rows) <= MOST_RICH_ROWS:
        _print_rich(columns, rows, align_right, spare)
    else:
        _print_plain(columns, rows, align_right, more)


def _print_plain(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    align_right: Sequence[bool],
    more: Iterable[Sequence[Any]],
) -> None:
    cells = [list(map(visible, columns)), *map(_cells, rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for line in chain(cells, map(_cells, more)):
        padded = (
            _padding(cell, width) + cell if right else cell + _padding(cell, width)
            for cell, width, right in zip(line, widths, align_right, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _padding(cell: str, width: int) -> str:
    return " " * (width - _width(cell))


def _cells(row: Sequence[Any]) -> list[str]:
    return [table_cell(value, brief=True) for value in row]


def _print_rich(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    align_right: Sequence[bool],
    spare: Sequence[str],
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = list(map(_cells, rows))
    widths = {
        name: min(MOST_UNBROKEN, max(map(_width, (*name.split("_"), *column))))
        for name, column in zip(columns, zip(*cells, strict=True), strict=True)
    }
    left_out = _left_out(widths, spare, console.width)
    left_out += _last_that_do_not_fit(widths, left_out, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    kept = [index for index, name in enumerate(columns) if name not in left_out]
    widths = _narrowed({columns[index]: widths[columns[index]] for index in kept}, console.width)
    longest = {
        columns[index]: max(map(_width, (columns[index], *(row[index] for row in cells))))
        for index in kept
    }
    widths = _widened(widths, longest, console.width)
    for index in kept:
        table.add_column(
            Text(_heading(visible(columns[index]), widths[columns[index]])),
            justify="right" if align_right[index] else "left",
            overflow="fold",
            width=widths[columns[index]],
        )
    for row in cells:
        table.add_row(*(Text(row[index]) for index in kept))
    console.print(table)
    if left_out:
        click.echo(f"(without {', '.join(map(visible, left_out))}: the terminal is narrow)")


def _heading(name: str, width: int) -> str:
    """Break a name into lines of at most `width`; a line's end stands for an underscore."""
    lines: list[str] = []
    for part in name.split("_"):
        if lines and _width(f"{lines[-1]}_{part}") <= width:
            lines[-1] += f"_{part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def _left_out(widths: Mapping[str, int], spare: Sequence[str], line_width: int) -> list[str]:
    free_width = line_width - sum(width + 2 for width in widths.values())
    left_out: list[str] = []
    for name in spare:
        if free_width < 0 and name in widths:  # a caller may name columns that this table lacks
            left_out.append(name)
            free_width += widths[name] + 2
    return left_out


def _last_that_do_not_fit(
    widths: Mapping[str, int], left_out: Sequence[str], line_width: int
) -> list[str]:
    """Find the last columns that do not fit even if all columns are narrowed to LEAST_WIDTH."""
    kept = [name for name in widths if name not in left_out]
    least = [min(widths[name], LEAST_WIDTH) + 2 for name in kept]
    n_fitting = len(kept)
    while n_fitting > 1 and sum(least[:n_fitting]) > line_width:
        n_fitting -= 1
    return kept[n_fitting:]


def _narrowed(widths: Mapping[str, int], line_width: int) -> dict[str, int]:
    """Narrow the widest columns, down to LEAST_WIDTH, until a line fits; rich breaks long cells."""
    narrowed = dict(widths)
    for _ in range(sum(width + 2 for width in widths.values()) - line_width):
        widest = max(narrowed, key=lambda name: narrowed[name])
        if narrowed[widest] <= LEAST_WIDTH:
            break
        narrowed[widest] -= 1
    return narrowed


def _widened(
    widths: Mapping[str, int], longest: Mapping[str, int], line_width: int
) -> dict[str, int]:
    """Give a line's free width, from the left, to columns narrower than their longest text."""
    free_width = line_width - sum(width + 2 for width in widths.values())
    widened = dict(widths)
    for name, width in widths.items():
        more = max(0, min(free_width, longest[name] - width))
        widened[name] += more
        free_width -= more
    return widened


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print named values, one per line; leave out a value that is None."""
    shown = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = visible(value) if isinstance(value, str) else table_cell(value, brief=True)
        click.echo(f"{name.ljust(width)}  {text}")


def print_next(*commands: str) -> None:
    """Print commands to type next."""
    if commands:
        click.echo("\nNext:")
        for command in commands:
            click.echo(f"  {command}")


def print_resumption(status: Status, name: str, suffix: str) -> bool:
    """
    Print how to resume a PAUSED or STOPPED study; return False for a study of another status.

    Args:
        suffix: What follows a command, such as " --storage URL"; see `Storage.command_suffix`.
    """
    if status not in (Status.PAUSED, Status.STOPPED):
        return False
    click.echo(f"The study is {status}; its trials run when it is resumed.")
    print_next(f"studydb resume {shlex.quote(name)}{suffix}")
    return True
