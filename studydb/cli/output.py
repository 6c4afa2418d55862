"""
Printing: tables for people, JSON and CSV for programs.

A table is drawn by rich on a terminal. Elsewhere it is plain columns: no colours, nothing cut off,
doubles with all their digits.
"""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from studydb.cli.spelling import csv_cell, plain, table_cell, visible

MOST_RICH_ROWS = 500
"""Longer tables are plain on a terminal, too: rich takes a millisecond a row."""

MOST_KEPT_WIDE = 20
"""Characters of a column that a terminal's table does not break."""

NUMBERS = (int, float)


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, form: str, of: str = "rows"
) -> None:
    """
    Print a listing.

    Args:
        columns: One name per value of a row.
        form: "table", "json" (a list of objects) or "csv" (with a header).
        of: What the rows are, for a table of none.
    """
    if form == "json":
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([csv_cell(value) for value in row] for row in rows)
    else:
        listed = list(rows)
        if listed:
            print_table(columns, listed)
        else:
            click.echo(f"no {of}")


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(plain(document), indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of one or more rows."""
    right = [
        all(value is None or isinstance(value, NUMBERS) for value in column)
        for column in zip(*rows, strict=True)
    ]
    if sys.stdout.isatty() and len(rows) <= MOST_RICH_ROWS:
        _print_rich(columns, rows, right)
    else:
        _print_plain(columns, rows, right)


def _print_plain(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[bool]
) -> None:
    cells = [list(columns), *([table_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def _print_rich(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[bool]
) -> None:
    from rich import box  # noqa: PLC0415  not for those who pipe
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[table_cell(value, brief=True) for value in row] for row in rows]
    for name, to_right, column in zip(columns, right, zip(*cells, strict=True), strict=True):
        table.add_column(
            name.replace("_", " "),  # may break there; the cells of short columns may not
            justify="right" if to_right else "left",
            overflow="fold",
            min_width=min(MOST_KEPT_WIDE, max(map(len, column))),
        )
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a few named values, a line each; what is None is left out."""
    shown = {name: value for name, value in fields.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = visible(value) if isinstance(value, str) else table_cell(value)
        click.echo(f"{name.ljust(width)}  {text}")


def print_next(*commands: str) -> None:
    """Say what to type next."""
    if commands:
        click.echo("\nNext:")
        for command in commands:
            click.echo(f"  {command}")
