"""What a benchmark prints: a table for people, JSON for programs."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def table(*headings: str, title: str | None = None) -> Table:
    """A table whose first column is text, and whose other columns are numbers."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="right" if place else "left")
    return made


def show_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


def show_tables(*tables: Table, note: str, conditions: Mapping[str, Any]) -> None:
    """Print tables, then a note and the conditions of the measurement."""
    console = Console()
    for one in tables:
        console.print(one)
    described = ", ".join(f"{name} {value}" for name, value in conditions.items())
    console.print(f"{note} {described}", style="dim")
