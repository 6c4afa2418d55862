"""
Printing: tables for people, JSON and CSV for programs.

A table is drawn by rich on a terminal. Elsewhere it is plain columns: no colours, nothing cut off.
Doubles have six digits in both; JSON and CSV have all of them.
"""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import click

from studydb.cli.values import csv_cell, plain, table_cell
from studydb.domain.text.display import visible

MOST_MEASURED_ROWS = 5_000
"""So many rows say how wide the columns of a longer table are."""

MOST_RICH_ROWS = 500
"""Longer tables are plain on a terminal, too: rich takes a millisecond a row."""

MOST_KEPT_WIDE = 20
"""Characters of a column that a terminal's table does not break."""

NUMBERS = (int, float)
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""As SQLite hands them to `query`."""


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    form: str,
    of: str = "rows",
    spare: Sequence[str] = (),
) -> None:
    """
    Print a listing.

    Args:
        columns: One name per value of a row.
        form: "table", "json" (a list of objects) or "csv" (with a header).
        of: What the rows are, for a table of none.
        spare: Columns that a narrow terminal does without, the first one first.
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
            click.echo(f"no {of}")


def _print_objects(objects: Iterable[Mapping[str, Any]]) -> None:
    """Print a JSON list as `print_json` does, without holding it."""
    before = "["
    for each in objects:
        text = json.dumps(plain(each), indent=2, allow_nan=False)
        click.echo(f"{before}\n  " + text.replace("\n", "\n  "), nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(plain(document), indent=2, allow_nan=False))


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
        more: What follows; only `rows` say how wide the columns of a long table are.
        spare: Columns that a narrow terminal does without, the first one first.
    """
    right = [
        all(value is None or isinstance(value, NUMBERS) or value in NOT_FINITE for value in column)
        for column in zip(*rows, strict=True)
    ]
    if sys.stdout.isatty() and len(rows) <= MOST_RICH_ROWS:
        _print_rich(columns, rows, right, spare)
    else:
        _print_plain(columns, rows, right, more)


def _print_plain(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    right: Sequence[bool],
    more: Iterable[Sequence[Any]],
) -> None:
    cells = [list(map(visible, columns)), *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rest = map(_cells, more)
    for line in chain(cells, rest):
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _cells(row: Sequence[Any]) -> list[str]:
    return [table_cell(value, brief=True) for value in row]


def _print_rich(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    right: Sequence[bool],
    spare: Sequence[str],
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    cells = [[table_cell(value, brief=True) for value in row] for row in rows]
    widths = {
        name: min(MOST_KEPT_WIDE, max(len(cell) for cell in (*name.split("_"), *column)))
        for name, column in zip(columns, zip(*cells, strict=True), strict=True)
    }
    left_out = _left_out(widths, spare, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    kept = [place for place, name in enumerate(columns) if name not in left_out]
    for place in kept:
        table.add_column(
            visible(columns[place]).replace("_", " "),  # may break there; short cells may not
            justify="right" if right[place] else "left",
            overflow="fold",
            min_width=widths[columns[place]],
        )
    for row in cells:
        table.add_row(*(Text(row[place]) for place in kept))
    console.print(table)
    if left_out:
        click.echo(f"(without {', '.join(left_out)}: the terminal is narrow)")


def _left_out(widths: Mapping[str, int], spare: Sequence[str], most: int) -> list[str]:
    """The columns to leave out so that the others, each with its gap, fit."""
    room = most - sum(width + 2 for width in widths.values())
    left_out: list[str] = []
    for name in spare:
        if room < 0:
            left_out.append(name)
            room += widths[name] + 2
    return left_out


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a few named values, a line each; what is None is left out."""
    shown = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = visible(value) if isinstance(value, str) else table_cell(value, brief=True)
        click.echo(f"{name.ljust(width)}  {text}")


def print_next(*commands: str) -> None:
    """Say what to type next."""
    if commands:
        click.echo("\nNext:")
        for command in commands:
            click.echo(f"  {command}")
