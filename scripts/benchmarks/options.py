"""Options that the subcommands share."""

from collections.abc import Callable, Sequence
from typing import Any

import click

Command = Callable[..., Any]


def turns(*, processes: Sequence[int], rounds: int, seconds: float) -> Callable[[Command], Command]:
    """The options for the number of processes, rounds and seconds."""
    options = (
        click.option(
            "--processes",
            type=click.IntRange(1, 256),
            multiple=True,
            default=processes,
            help="How many processes per contender; may be given several times.",
        ),
        click.option(
            "--rounds",
            type=click.IntRange(1, 1000),
            default=rounds,
            help="How many slices each contender gets.",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(0.05, 600),
            default=seconds,
            help="The length of a slice.",
        ),
        click.option(
            "--fsync/--no-fsync",
            default=True,
            help="Whether our own PostgreSQL waits for the disk, as it must in production.",
        ),
        click.option("--json", "as_json", is_flag=True, help="JSON, every slice included."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def against(command: Command) -> Command:
    """The option that compares the working tree with an earlier commit; see against.py."""
    return click.option(
        "--against",
        "commit",
        metavar="COMMIT",
        help="Measure this working tree beside that commit instead, in 9 rounds by default; exit "
        "code 1 if it is slower by 5 % and by more than noise.",
    )(command)
