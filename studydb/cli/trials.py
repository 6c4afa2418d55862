"""`trials`, `results`, `best`: what came out."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from studydb.analysis.naming import spread_names
from studydb.cli.opening import opened_study
from studydb.cli.options import (
    Storage,
    format_option,
    number_argument,
    storage_option,
    study_argument,
)
from studydb.cli.printing import print_fields, print_json, print_next, print_rows
from studydb.cli.status import best_fields
from studydb.cli.values import assignments
from studydb.domain.life.states import State
from studydb.domain.text.display import best_text

TABLE_COLUMNS = (
    "number",
    "state",
    "reason",
    "value",
    "best_value",
    "best_step",
    "last_step",
    "attempt",
    "duration_s",
    "params",
)
"""What of `v_trial` fits a screen."""


SPARE_COLUMNS = ("duration_s", "attempt", "best_step", "value", "reason")
ON_TERMINAL = 50
"""Results that a terminal shows if no other number is asked for."""

RESULT_TABLE_COLUMNS = ("step", "metrics", "attempt", "reported_at")


@click.command()
@study_argument
@click.option(
    "--sort",
    type=click.Choice(["number", "best"]),
    default="number",
    show_default=True,
    help="By number, or best first.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first so many.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in State], case_sensitive=False),
    help="Only those in this state.",
)
@format_option
@storage_option
def trials(
    *, name: str, sort: str, limit: int | None, state: str | None, form: str, storage: Storage
) -> None:
    """
    List the trials of NAME: the columns of v_trial.

    JSON has all of them, CSV too, with one per parameter; a table has those that fit.
    """
    from studydb.operations import listing

    with opened_study(storage, name) as study:
        rows = listing.trial_rows(
            study.database,
            study.record,
            state=None if state is None else State(state),
            by_best=sort == "best",
            limit=limit,
        )
        space, again = study.record.space, storage.again(study.storage)
    fields = [{**row._asdict(), "params": space.flatten(row.params)} for row in rows]
    if form == "json":
        print_rows(listing.TRIAL_COLUMNS, rows, form=form)
    elif form == "csv":
        print_rows(
            *spread(listing.TRIAL_COLUMNS, fields, "params", "param/", list(space.parameters)),
            form=form,
        )
    else:
        shown = [[each[column] for column in TABLE_COLUMNS] for each in fields]
        print_rows(TABLE_COLUMNS, shown, form=form, of="trials", spare=SPARE_COLUMNS)
        if state == State.ERROR and rows:  # the table has no room for a traceback
            print_next(f"studydb show {shlex.quote(name)} {rows[0].number}{again}")


def spread(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    column: str,
    prefix: str,
    first: Sequence[str],
) -> tuple[list[str], list[list[Any]]]:
    """As `spreading`, of rows that are all here: the new columns, and the rows."""
    found = {name for row in rows for name in row[column]}
    names, read = spreading(columns, column, prefix, first, found)
    return names, [read(row) for row in rows]


def spreading(
    columns: Sequence[str], column: str, prefix: str, first: Sequence[str], found: Iterable[str]
) -> tuple[list[str], Callable[[Mapping[str, Any]], list[Any]]]:
    """
    Put a column per name in the place of a column of dicts, as the frames have it.

    Args:
        columns: Of the rows, in order.
        column: The one that holds dicts.
        prefix: For names that clash with another column.
        first: The names that come first.
        found: All names that there are.

    Returns:
        The new columns, and what gives a row's value for each.
    """
    place = columns.index(column)
    before, after = columns[:place], columns[place + 1 :]
    names = spread_names(first, found, taken=[*before, *after], prefix=prefix)

    def read(row: Mapping[str, Any]) -> list[Any]:
        values = row[column]
        return [
            *(row[name] for name in before),
            *(values.get(name) for name in names),
            *(row[name] for name in after),
        ]

    return [*before, *names.values(), *after], read


@click.command()
@study_argument
@number_argument
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"The last so many; on a terminal {ON_TERMINAL}, elsewhere all.",
)
@format_option
@storage_option
def results(*, name: str, number: int, limit: int | None, form: str, storage: Storage) -> None:
    """
    List what trial NUMBER of NAME has reported, step by step: the columns of v_result.

    In a table and in CSV there is a column per metric.
    """
    from studydb.operations import listing

    is_cut = limit is None and form == "table" and sys.stdout.isatty()
    with opened_study(storage, name) as study:
        found = listing.reports(
            study.database, study.record, number, last=ON_TERMINAL if is_cut else limit
        )
        if form == "json":
            print_rows(listing.RESULT_COLUMNS, found.rows(), form=form)
            return
        whole = listing.RESULT_COLUMNS if form == "csv" else RESULT_TABLE_COLUMNS
        metric = study.record.objective.metric
        columns, read = spreading(whole, "metrics", "metric/", [metric], found.names())
        rows = (read(dict(zip(listing.RESULT_COLUMNS, row, strict=True))) for row in found.rows())
        print_rows(columns, rows, form=form, of="results")
        again = storage.again(study.storage)
    if is_cut and found.n_listed < found.n_results:
        click.echo(f"(the last {found.n_listed} of {found.n_results})")
        print_next(f"studydb results {shlex.quote(name)} {number} --limit {found.n_results}{again}")


@click.command()
@study_argument
@format_option
@storage_option
def best(*, name: str, form: str, storage: Storage) -> None:
    """
    Show the best trial of NAME: its best value over all steps, over all trials that have one.

    NaN never wins; ties go to the lower number.
    """
    with opened_study(storage, name) as study:
        found = study.best_trial
    fields = best_fields(study.record.objective, found)
    if form == "json":
        print_json(fields)
    elif form == "csv":
        print_rows(tuple(fields), [tuple(fields.values())], form=form)
    else:
        print_fields(
            {
                f"best {study.record.objective}": best_text(found.best_value),
                "trial": f"{found.number} ({found.state})",
                "step": str(found.summary.best_step),
                "params": assignments(study.record.space.flatten(found.params)),
            }
        )
        print_next(f"studydb show {shlex.quote(name)} {found.number}{storage.again(study.storage)}")
