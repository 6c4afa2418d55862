"""`trials`, `results`, `best`: list trials and results, and show the best trial."""

import shlex
import sys
from typing import Any

import click

from studydb.analysis.expanding import expand
from studydb.cli.formatting import assignments, tags_text, trial_fields, used_columns
from studydb.cli.opening import opened_study
from studydb.cli.options import (
    POSITIVE,
    Storage,
    format_option,
    storage_option,
    study_argument,
    trial_argument,
)
from studydb.cli.printing import print_fields, print_next, print_object, print_rows
from studydb.domain.life.states import State
from studydb.domain.listed_rows import ListedResult, ListedTrial
from studydb.domain.records import TrialRow
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
    "name",
    "tags",
    "parent",
    "invalidated_at",
    "params",
    "changed",
    "resources",
)
"""The columns of `v_trial` that a table can have; JSON and CSV have all columns."""

SPARE_COLUMNS = ("resources", "tags", "duration_s", "attempt", "best_step", "value", "reason")
RESULTS_ON_TERMINAL = 50
"""How many results a table on a terminal shows without --limit."""

RESULT_TABLE_COLUMNS = ("step", "metrics", "attempt", "reported_at")


@click.command()
@study_argument
@click.option(
    "--sort",
    type=click.Choice(["number", "best"]),
    default="number",
    help="Order by number, or the best first.",
)
@click.option("--limit", type=POSITIVE, metavar="N", help="List the first N only.")
@click.option(
    "--state",
    type=click.Choice([str(state) for state in State], case_sensitive=False),
    help="List only trials in this state.",
)
@click.option("--tag", metavar="TAG", help="List only trials with this tag.")
@format_option
@storage_option
def trials(
    *,
    name: str,
    sort: str,
    limit: int | None,
    state: str | None,
    tag: str | None,
    form: str,
    storage: Storage,
) -> None:
    """
    List the trials of NAME: the columns of v_trial.

    JSON and CSV have all columns; CSV has a column for each parameter instead of params. A table
    leaves some columns out.
    """
    from studydb.operations.reads import listed_trials

    with opened_study(storage, name) as study:
        rows = listed_trials(
            study.database,
            study.record,
            state=None if state is None else State(state),
            tag=tag,
            best_first=sort == "best",
            limit=limit,
        )
        space, suffix = study.record.space, storage.command_suffix(study.storage)
    if form == "json":
        print_rows(ListedTrial._fields, rows, form=form)
        return
    fields = [trial_fields(row, space) for row in rows]
    if form == "csv":
        names = {name for row in fields for name in row["params"]}
        expanded, read = expand(
            ListedTrial._fields, "params", "param/", list(space.parameters), names
        )
        print_rows(expanded, map(read, fields), form=form)
        return
    columns = used_columns(TABLE_COLUMNS, fields)
    shown = [[each[column] for column in columns] for each in fields]
    print_rows(columns, shown, form=form, noun="trials", spare=SPARE_COLUMNS)
    if state == State.ERROR and rows:  # `show` prints the traceback
        print_next(f"studydb show {shlex.quote(name)} {rows[0].number}{suffix}")


@click.command()
@study_argument
@trial_argument
@click.option(
    "--limit",
    type=POSITIVE,
    metavar="N",
    help="List the last N results only.  "
    f"[default: {RESULTS_ON_TERMINAL} in a table on a terminal, else all]",
)
@format_option
@storage_option
def results(*, name: str, trial: int | str, limit: int | None, form: str, storage: Storage) -> None:
    """
    List the results of trial TRIAL of study NAME by step: the columns of v_result.

    A table and CSV have a column per metric. A table leaves out study, number and value.
    """
    from studydb.operations.pages import trial_results

    is_shortened = limit is None and form == "table" and sys.stdout.isatty()
    with opened_study(storage, name) as study:
        number = study.number_of(trial)
        last = RESULTS_ON_TERMINAL if is_shortened else limit
        found = trial_results(study.database, study.record, number, limit=last)
        if form == "json":
            print_rows(ListedResult._fields, found.rows(), form=form)
            return
        listed = ListedResult._fields if form == "csv" else RESULT_TABLE_COLUMNS
        metric = study.record.objective.metric
        columns, read = expand(listed, "metrics", "metric/", [metric], found.metric_names())
        rows = (read(row._asdict()) for row in found.rows())
        print_rows(columns, rows, form=form, noun="results")
        suffix = storage.command_suffix(study.storage)
    if is_shortened and found.n_listed < found.n_results:
        click.echo(f"(the last {found.n_listed} of {found.n_results})")
        print_next(
            f"studydb results {shlex.quote(name)} {number} --limit {found.n_results}{suffix}"
        )


@click.command()
@study_argument
@click.option("--metric", help="Any metric that trials have reported; by default the study's.")
@click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    help="By default the study's mode; required if --metric is not the study's metric.",
)
@click.option(
    "--scope",
    type=click.Choice(["all", "last", "avg", "last-5-avg", "last-10-avg"]),
    default="all",
    show_default=True,
    help="Compare trials by their best value, their last value, or a mean of their values.",
)
@format_option
@storage_option
def best(
    *, name: str, metric: str | None, mode: str | None, scope: str, form: str, storage: Storage
) -> None:
    """
    Show the best trial of NAME: without options, the one with the best value of all steps.

    NaN is never best. If several trials have the best value, the trial with the lowest number
    is best.
    """
    from studydb.analysis.best_by import find_best
    from studydb.study.storage import read_patiently

    with opened_study(storage, name) as study:
        by = read_patiently(lambda: find_best(study.database, study.record, metric, mode, scope))
        found = study.trial(by.number)
    objective = by.objective
    is_usual = scope == "all" and objective == study.record.objective
    if form != "table":
        fields = best_fields(study.record.objective.metric, study.record.objective.mode, found)
        if not is_usual:
            asked = {"metric": objective.metric, "mode": objective.mode}
            fields = asked | {"scope": scope, "value": by.value} | fields | asked
        if form == "csv":
            fields["tags"] = tags_text(found.tags)
        print_object(fields, form=form)
        return
    heading = f"best {objective}" + ("" if scope == "all" else f", {scope}")
    print_fields(
        {
            heading: best_text(by.value, objective.mode),
            "trial": f"{found.number} ({found.state})",
            "name": found.name,
            "step": str(found.summary.best_step) if is_usual else None,
            "params": assignments(study.record.space.flatten(found.params)),
            "changed": assignments(found.changed) or None,
        }
    )
    suffix = storage.command_suffix(study.storage)
    print_next(f"studydb show {shlex.quote(name)} {found.number}{suffix}")


def best_fields(metric: str, mode: str, best: TrialRow) -> dict[str, Any]:
    """Return the fields of the best trial for JSON and CSV, with metric and mode."""
    return {
        "metric": metric,
        "mode": mode,
        "number": best.number,
        "name": best.name,
        "tags": best.tags,
        "best_value": best.best_value,
        "best_step": best.summary.best_step,
        "state": best.state,
        "params": best.params,
        "changed": best.changed,
    }
