"""`studies` and `status`: list the studies; show how a study is doing and what to type next."""

import shlex
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from studydb.cli.formatting import table_cell, trial_fields, used_columns
from studydb.cli.opening import opened, opened_study
from studydb.cli.options import Storage, format_option, storage_option
from studydb.cli.printing import print_fields, print_json, print_next, print_rows, print_table
from studydb.cli.trials import best_fields
from studydb.domain.life.states import State
from studydb.domain.listed_rows import ListedStudy
from studydb.domain.text.display import visible

if TYPE_CHECKING:
    from studydb.domain.records import Study
    from studydb.operations.overview import Overview

SPARE_COLUMNS = ("created_at", "max_concurrent", "mode", "num_trials")
UNFINISHED_COLUMNS = (
    *("number", "name", "tags", "state", "attempt", "last_step", "value", "best_value", "params"),
)
UNFINISHED_SPARE_COLUMNS = ("tags", "attempt", "value")


@click.command()
@format_option
@storage_option
def studies(*, form: str, storage: Storage) -> None:
    """List the studies of the database, with their trials per state."""
    _print_studies(storage, form)


def _print_studies(storage: Storage, form: str, *, names_next: bool = False) -> None:
    """Print the studies; `names_next` adds the command that shows the newest of them."""
    from studydb.operations.reads import list_studies

    with opened(storage) as database:
        rows, suffix = list_studies(database), storage.command_suffix(database.url)
    print_rows(ListedStudy._fields, rows, form=form, noun="studies", spare=SPARE_COLUMNS)
    if names_next and rows:
        print_next(f"studydb status {shlex.quote(rows[-1].study)}{suffix}")


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@format_option
@storage_option
def status(*, name: str | None, form: str, storage: Storage) -> None:
    """
    Show how study NAME is doing: counts, best trial, unfinished trials, workers, what to type next.

    Without NAME, list all studies.
    """
    if name is None:
        _print_studies(storage, form, names_next=form == "table")
        return
    from studydb.operations.overview import read_overview

    with opened_study(storage, name) as study:
        overview = read_overview(study.database, study.record)
        record, suffix = study.record, storage.command_suffix(study.storage)
    if form == "csv":
        print_rows(ListedStudy._fields, [overview.row], form=form)
    elif form == "json":
        print_json(_document(record, overview))
    else:
        _print_page(record, overview, shown_storage=study.storage, suffix=suffix)


def _document(study: "Study", overview: "Overview") -> dict[str, Any]:
    from studydb.analysis.explaining import explain_decision
    from studydb.analysis.fit_text import fit_texts

    best, error, back = overview.best, overview.last_error, overview.given_back
    return {
        **overview.row._asdict(),
        "best": best and best_fields(overview.row.metric, overview.row.mode, best),
        "workers_alive": overview.workers.n_alive,
        "live": [
            {name: getattr(row, name) for name in UNFINISHED_COLUMNS} for row in overview.unfinished
        ],
        "decisions": [
            one.judged._asdict()
            | {
                "number": one.number,
                "state": one.state,
                "reason": one.reason,
                "why": explain_decision(study, one),
            }
            for one in overview.decisions
        ],
        "problems": [problem._asdict() for problem in overview.problems],
        "pause_reason": overview.progress.pause_reason,
        "limit_reached": overview.progress.limit_reached,
        "limits": overview.limits,
        "checkpoints": [each._asdict() for each in overview.checkpoints],
        "last_error": None if error is None else structs.asdict(error),
        "given_back": None if back is None else structs.asdict(back),
        "notes": [note._asdict() for note in overview.notes],
        "resources": fit_texts(overview.fit),
    }


def _print_page(study: "Study", overview: "Overview", *, shown_storage: str, suffix: str) -> None:
    from studydb.analysis import overview_text as text
    from studydb.analysis.fit_text import fit_lines, fit_texts

    row, best = overview.row, overview.best
    print_fields(
        {
            "study": visible(row.study),
            "storage": shown_storage,
            "status": text.status_text(study, overview),
            "metric": f"{row.metric} ({row.mode})",
            "trials": text.trials_text(overview),
            "ended": text.ends_text(overview),
            "time": text.time_text(overview),
            "max concurrent": row.max_concurrent,
            "limits": ", ".join(overview.limits) or None,
            "best": text.best_line(overview),
            "params": best and (study.space.flatten(best.params) or None),
            "changed": best and (best.changed or None),
            "workers": text.workers_text(overview.workers),
            "checkpoints": text.checkpoints_text(overview),
        }
    )
    _print_unfinished(study, overview, text.counts_by_state(row))
    if lines := fit_lines(fit_texts(overview.fit)):
        click.echo("\nResources:\n" + "\n".join(lines))
    if lines := text.decision_lines(study, overview):
        click.echo("\nLast decisions of the scheduler:\n" + "\n".join(lines))
    if lines := text.failure_lines(study, overview):
        click.echo("\n" + "\n".join(lines))
    if overview.problems:
        click.echo("\nProblems:")
    for problem in overview.problems:
        click.echo(f"  {table_cell(problem.at)}  {text.problem_text(problem)}")
    if overview.notes:
        click.echo("\nNotes:")
    for note in overview.notes:
        click.echo(f"  {table_cell(note.at)}  {visible(note.author)}: {table_cell(note.text)}")
    print_next(*(command + suffix for command in text.next_commands(study, overview)))


def _print_unfinished(study: "Study", overview: "Overview", counts: dict[State, int]) -> None:
    if not overview.unfinished:
        return
    click.echo()
    fields = [trial_fields(row, study.space) for row in overview.unfinished]
    columns = used_columns(UNFINISHED_COLUMNS, fields)
    rows = [[row[column] for column in columns] for row in fields]
    print_table(columns, rows, spare=UNFINISHED_SPARE_COLUMNS)
    hidden = {
        state: counts[state] - sum(row.state == state for row in overview.unfinished)
        for state in (State.RUNNING, State.PENDING, State.PAUSED)
    }
    not_shown = ", ".join(f"{count} {state}" for state, count in hidden.items() if count > 0)
    if not_shown:
        click.echo(f"not shown: {not_shown}")
