"""`show`: show a study's definition, or one trial and why it ended."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from studydb.cli.formatting import assignments, tags_text
from studydb.cli.opening import opened_study
from studydb.cli.options import (
    Storage,
    TrialWord,
    format_option,
    storage_option,
    study_argument,
)
from studydb.cli.printing import (
    print_fields,
    print_json,
    print_next,
    print_object,
    print_rows,
    print_table,
)
from studydb.domain.failures import short_type
from studydb.domain.listed_rows import Judgement, ListedAttempt, ListedNote
from studydb.domain.text.display import visible

if TYPE_CHECKING:
    from studydb.domain.records import Study
    from studydb.operations.reads import TrialDetails

SPARE_COLUMNS = ("pid", "start_s", "start", "code")
"""The columns of attempts to leave out on a narrow terminal, in this order."""

JUDGED_SPARE_COLUMNS = ("step", "bracket", "n_ranked", "kept", "promoted_at")
"""The columns of judgements to leave out on a narrow terminal, in this order."""

ATTEMPT_COLUMNS = (
    "attempt",
    "reason",
    "start_step",
    "host",
    "pid",
    "started_at",
    "duration_s",
    "start",
    "start_s",
    "error_type",
    "error_message",
)

DIGEST_CHARACTERS = 12


@click.command()
@study_argument
@click.argument("trial", metavar="[TRIAL]", type=TrialWord(), required=False)
@format_option
@storage_option
def show(*, name: str, trial: int | str | None, form: str, storage: Storage) -> None:
    """
    Show the definition of study NAME: its space, scheduler, searcher, rules, limits and trainable.

    With TRIAL, a number or name, show that trial: its parameters, attempts and judgements, why it
    waits or ended, and its error. CSV has only the attempts of the trial.
    """
    if trial is None:
        _show_study(name, form=form, storage=storage)
        return
    from studydb.analysis.explaining import explain_state
    from studydb.analysis.fit_text import fit_lines, trial_fit_texts
    from studydb.operations.reads import trial_details

    with opened_study(storage, name) as study:
        details = trial_details(study.database, study.record, study.number_of(trial))
        record = study.record
    why, resources = explain_state(record, details), trial_fit_texts(details.fit)
    if form == "json":
        print_json(_document(record, details) | {"why": why, "resources": resources})
        return
    if form == "csv":
        print_rows(ListedAttempt._fields, details.listed, form=form)
        return
    _print_trial(record, details, why)
    if resources:
        click.echo("\nResources:\n" + "\n".join(fit_lines(resources)))
    attempts = [
        [*_attempt_cells(row), _code_text(full.provenance)]
        for row, full in zip(details.listed, details.attempts, strict=True)
    ]
    _print_part("attempts", (*ATTEMPT_COLUMNS, "code"), attempts, spare=SPARE_COLUMNS)
    columns = tuple(column for column in Judgement._fields if column != "why")
    judged = [[getattr(row, column) for column in columns] for row in details.judgements]
    _print_part("judged", columns, judged, spare=JUDGED_SPARE_COLUMNS)
    _print_part("notes", ListedNote._fields, details.notes)
    if details.attempts and (traceback := details.attempts[-1].traceback):
        lines = traceback.rstrip().expandtabs().splitlines()
        click.echo("\n" + "\n".join(map(visible, lines)))


def _attempt_cells(row: ListedAttempt) -> list[Any]:
    """The values of `ATTEMPT_COLUMNS`, with the error's type without its module."""
    shown = row._replace(error_type=row.error_type and short_type(row.error_type))
    return [getattr(shown, column) for column in ATTEMPT_COLUMNS]


def _show_study(name: str, *, form: str, storage: Storage) -> None:
    from studydb.analysis.definition import definition, definition_page, space_lines

    with opened_study(storage, name) as study:
        record = study.record
        place = study.database.locations.checkpoint_stores(record).current
        suffix = storage.command_suffix(study.storage)
    if form == "table":
        print_fields(definition_page(record, checkpoints=place))
        click.echo("\nspace" if record.space.leaves else "\nspace  (empty)")
        for line in space_lines(record.space):
            click.echo(f"  {visible(line)}")
        print_next(f"studydb status {shlex.quote(name)}{suffix}")
        return
    print_object(definition(record, checkpoints=place), form=form)


def _document(study: "Study", details: "TrialDetails") -> dict[str, Any]:
    return _fields(study, details) | {
        "asks": details.fit and details.fit.asked.to_json(),
        "params": details.trial.params,
        "config": details.trial.config,
        "changed": details.trial.changed,
        "attempts": [
            {
                **row._asdict(),
                "traceback": full.traceback,
                "config": full.config,
                "provenance": full.provenance,
            }
            for row, full in zip(details.listed, details.attempts, strict=True)
        ],
        "judged": [judgement._asdict() for judgement in details.judgements],
        "notes": [note._asdict() for note in details.notes],
    }


def _fields(study: "Study", details: "TrialDetails") -> dict[str, Any]:
    trial = details.trial
    return {
        "study": study.name,
        "number": trial.number,
        "name": trial.name,
        "tags": trial.tags,
        "uuid": trial.uuid,
        "state": trial.state,
        "reason": trial.reason,
        "origin": trial.origin,
        "parent": trial.parent,
        "clones": details.clones,
        "invalidated_at": trial.invalidated_at,
        "value": trial.value,
        "best_value": trial.best_value,
        "best_step": trial.summary.best_step,
        "last_step": trial.summary.last_step,
        "n_results": trial.summary.n_results,
        "attempt": trial.attempt,
        "failures": trial.failures,
        "losses": trial.losses,
        "request": trial.request,
        "verdict": trial.verdict and f"{trial.verdict.action}: {trial.verdict.reason}",
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }


def _print_trial(study: "Study", details: "TrialDetails", why: str | None) -> None:
    fields = _fields(study, details)
    metric = str(study.objective)
    reason, name, tags, clones = (
        fields.pop(field) for field in ("reason", "name", "tags", "clones")
    )
    print_fields(
        {
            "trial": f"{fields.pop('number')} of {fields.pop('study')}",
            "name": name,
            "tags": tags_text(tags),
            "clones": ", ".join(map(str, clones)) or None,
            "state": f"{fields.pop('state')}{f': {reason}' if reason else ''}",
            "why": why,
            "params": assignments(study.space.flatten(details.trial.params)),
            "changed": assignments(details.trial.changed) or None,
            "asks": details.fit and str(details.fit.asked),
            f"last {metric}": fields.pop("value"),
            f"best {metric}": fields.pop("best_value"),
        }
        | fields
    )


def _code_text(provenance: Any) -> str | None:
    """Describe the code of an attempt by its name and the beginning of its digest."""
    if not isinstance(provenance, dict):  # None, or JSON that another program has stored
        return None
    name, sha256 = provenance.get("name"), str(provenance.get("sha256") or "")
    return " ".join(filter(None, (str(name or ""), sha256[:DIGEST_CHARACTERS]))) or None


def _print_part(
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[Sequence[Any]],
    *,
    spare: Sequence[str] = (),
) -> None:
    if rows:
        click.echo(f"\n{title}")
        print_table(columns, rows, spare=spare)
