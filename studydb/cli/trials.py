"""`trials`, `results`, `best`: what came out."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import (
    Storage,
    format_option,
    number_argument,
    storage_option,
    study_argument,
)
from studydb.cli.output import print_fields, print_json, print_next, print_rows
from studydb.cli.spelling import assignments
from studydb.cli.status import best_fields
from studydb.domain.states import State

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
"""What of `v_trial` fits a screen; JSON and CSV have all of it."""


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
@format_option()
@storage_option
def trials(
    *, name: str, sort: str, limit: int | None, state: str | None, form: str, storage: Storage
) -> None:
    """List the trials of NAME: the columns of v_trial."""
    from studydb.operations import listing  # noqa: PLC0415  brings SQLAlchemy

    with opened_study(storage, name) as study:
        rows = listing.trial_rows(
            study.database,
            study.record,
            state=None if state is None else State(state),
            by_best=sort == "best",
            limit=limit,
        )
    columns = TABLE_COLUMNS if form == "table" else listing.TRIAL_COLUMNS
    if form == "table":
        flatten = study.record.space.flatten
        rows = [row._replace(params=flatten(row.params)) for row in rows]
    shown = [[getattr(row, column) for column in columns] for row in rows]
    print_rows(columns, shown, form=form, of="trials")


@click.command()
@study_argument
@number_argument
@format_option()
@storage_option
def results(*, name: str, number: int, form: str, storage: Storage) -> None:
    """
    List what trial NUMBER of NAME has reported, step by step: the columns of v_result.

    In a table and in CSV there is a column per metric.
    """
    from studydb.operations import listing  # noqa: PLC0415  brings SQLAlchemy

    with opened_study(storage, name) as study:
        rows = listing.result_rows(study.database, study.record, number)
        metric = study.record.metric
    if form == "json":
        print_rows(listing.RESULT_COLUMNS, rows, form=form)
        return
    others = sorted({name for row in rows for name in row.metrics} - {metric})
    columns = ("step", metric, *others, "attempt", "reported_at")
    shown = [
        [row.step, row.value, *map(row.metrics.get, others), row.attempt, row.reported_at]
        for row in rows
    ]
    print_rows(columns, shown, form=form, of="results")


@click.command()
@study_argument
@format_option()
@storage_option
def best(*, name: str, form: str, storage: Storage) -> None:
    """
    Show the best trial of NAME: its best value over all steps, over all trials that have one.

    NaN never wins; ties go to the lower number.
    """
    with opened_study(storage, name) as study:
        found = study.best_trial
    fields = best_fields(study.record, found)
    if form == "json":
        print_json(fields)
    elif form == "csv":
        print_rows(tuple(fields), [tuple(fields.values())], form=form)
    else:
        metric, mode = fields["metric"], fields["mode"]
        print_fields(
            {
                f"best {metric} ({mode})": repr(found.best_value),
                "trial": f"{found.number} ({found.state})",
                "step": str(found.summary.best_step),
                "params": assignments(study.record.space.flatten(found.params)),
            }
        )
        print_next(f"studydb show {shlex.quote(name)} {found.number}{storage.again(study.storage)}")
