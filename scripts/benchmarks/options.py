"""Options that the subcommands share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

Command = Callable[..., Any]
Option = Callable[[Command], Command]

fsync = click.option(
    "--fsync/--no-fsync",
    default=True,
    help="Whether the benchmark's own server waits for the disk at each commit, as in production.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with all measurements.")
storage = click.option(
    "--storage", type=click.Choice(["postgresql", "sqlite"]), default="postgresql"
)
against = click.option(
    "--against",
    "commit",
    metavar="COMMIT",
    help="Compare the working tree with COMMIT, not with other contenders. With --against, the "
    "default of --rounds is 9. The exit code is 1 if the ratio of the speeds is below 0.95 and the "
    "ratio's bootstrap interval does not include 1.",
)


def number_of_rounds(default: int, what: str) -> Option:
    """The option `--rounds`; `what` is its help text."""
    return click.option("--rounds", type=click.IntRange(1, 1000), default=default, help=what)


@dataclass(frozen=True)
class Turns:
    """The values of the options that `turns` adds to a benchmark whose contenders take turns."""

    processes: Sequence[int]
    rounds: int
    seconds: float
    fsync: bool
    as_json: bool


def turns(*, processes: Sequence[int], rounds: int, seconds: float) -> Option:
    """Make the options of `Turns`, with these defaults; a command gets their values as `turns`."""
    options = (
        click.option(
            "--processes",
            type=click.IntRange(1, 256),
            multiple=True,
            default=processes,
            help="How many processes per contender; may be given several times.",
        ),
        number_of_rounds(rounds, "How many slices each contender gets."),
        click.option(
            "--seconds",
            type=click.FloatRange(0.05, 600),
            default=seconds,
            help="The length of a slice.",
        ),
        fsync,
        as_json,
    )

    def add(command: Command) -> Command:
        @wraps(command)
        def called(**given: Any) -> Any:
            taken = {field.name: given.pop(field.name) for field in fields(Turns)}
            return command(turns=Turns(**taken), **given)

        for option in reversed(options):
            called = option(called)
        return called

    return add
