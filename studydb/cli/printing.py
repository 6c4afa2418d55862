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

from studydb.cli.column_widths import (
    break_long_words,
    break_name,
    fit,
    line_width,
    measure,
    text_width,
)
from studydb.cli.formatting import csv_cell, plain, table_cell
from studydb.domain.life.states import Status
from studydb.domain.number_names import NUMBER_NAMES
from studydb.domain.text.display import visible

MOST_MEASURED_ROWS = 5_000
"""How many rows at the beginning of a table determine the widths of its columns."""

MOST_RICH_ROWS = 500
"""A table with more rows is printed without rich, because rich takes a millisecond a row."""

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
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    for line in chain(cells, map(_cells, more)):
        padded = (
            _padding(cell, width) + cell if right else cell + _padding(cell, width)
            for cell, width, right in zip(line, widths, align_right, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _padding(cell: str, width: int) -> str:
    return " " * (width - text_width(cell))


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
    names = list(map(visible, columns))
    cells = list(map(_cells, rows))
    measured = map(measure, names, zip(*cells, strict=True))
    widths, left_out = fit(dict(zip(columns, measured, strict=True)), spare, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    kept = [index for index, name in enumerate(columns) if name in widths]
    for index in kept:
        width = widths[columns[index]]
        table.add_column(
            Text(break_name(names[index], width)),
            justify="right" if align_right[index] else "left",
            overflow="fold",
            width=width,
        )
    for row in cells:
        table.add_row(
            *(Text(break_long_words(row[index], widths[columns[index]])) for index in kept)
        )
    console.width = max(console.width, line_width(widths.values()))  # so that rich narrows none
    console.print(table)
    if left_out:
        click.echo(f"(without {', '.join(map(visible, left_out))}: the terminal is narrow)")


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
