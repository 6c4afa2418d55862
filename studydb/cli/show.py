"""`show`: a study's definition, or one trial and why it is where it is."""

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import (
    Number,
    Storage,
    format_option,
    storage_option,
    study_argument,
)
from studydb.cli.printing import print_fields, print_json, print_next, print_rows, print_table
from studydb.cli.values import assignments, table_cell
from studydb.domain.life.rules import first_hit
from studydb.domain.life.states import Mode, Reason
from studydb.domain.text.display import counted, visible

if TYPE_CHECKING:
    from studydb.domain.metrics import Result
    from studydb.domain.records import Study, TrialRow
    from studydb.operations.reading import Details

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
JUDGEMENT_COLUMNS = ("rung", "step", "value", "cutoff", "action")


@click.command()
@study_argument
@click.argument("number", metavar="[NUMBER]", type=Number(), required=False)
@format_option
@storage_option
def show(*, name: str, number: int | None, form: str, storage: Storage) -> None:
    """
    Show what study NAME was created with: its space, scheduler, searcher, rules, limits, trainable.

    With NUMBER, show that trial: its attempts, how it was judged, why it stopped, its error; there
    CSV has the attempts alone.
    """
    if number is None:
        _show_study(name, form=form, storage=storage)
        return
    from studydb.operations import listing, reading

    with opened_study(storage, name) as study:
        details = reading.details(study.database, study.record, number)
        attempts = listing.attempt_rows(study.database, study.record, number)
        last = listing.last_result(study.database, study.record, details.trial)
        record = study.record
    judged = [judgement(entry, record.objective.mode) for entry in details.entries]
    why = explain(details, record, judged, last)
    traceback = details.attempts[-1].traceback if details.attempts else None
    if form == "json":
        print_json(_document(details, record, attempts, judged) | {"why": why})
        return
    rows = [each._asdict() for each in attempts]
    if form == "csv":
        print_rows(listing.ATTEMPT_COLUMNS, attempts, form=form)
        return
    _print_trial(details, record, why)
    _print_part("attempts", ATTEMPT_COLUMNS, rows)
    _print_part("judged", JUDGEMENT_COLUMNS, judged)
    if traceback:
        lines = traceback.rstrip().expandtabs().splitlines()
        click.echo("\n" + "\n".join(map(visible, lines)))


def _show_study(name: str, *, form: str, storage: Storage) -> None:
    from studydb.analysis.definition import definition, definition_page, space_lines

    with opened_study(storage, name) as study:
        record = study.record
        place = study.database.locations.checkpoint_stores(record).current
        again = storage.again(study.storage)
    if form == "table":
        print_fields(definition_page(record, checkpoints=place))
        click.echo("\nspace" if record.space.leaves else "\nspace  (empty)")
        for line in space_lines(record.space):
            click.echo(f"  {visible(line)}")
        print_next(f"studydb status {shlex.quote(name)}{again}")
        return
    fields = definition(record, checkpoints=place)
    if form == "json":
        print_json(fields)
    else:
        print_rows(tuple(fields), [tuple(fields.values())], form=form)


def judgement(entry: Any, mode: Mode) -> dict[str, Any]:
    """
    How a trial was judged at one rung, in values as the user reports them.

    The stored cutoff is a score, of which lower is better.
    """
    cutoff = entry.cutoff
    if cutoff is not None and mode is Mode.MAX:
        cutoff = 0.0 - cutoff
    return {
        "rung": entry.rung_step,
        "step": entry.step,
        "value": entry.value,
        "cutoff": cutoff,
        "action": entry.action,
    }


def explain(
    details: "Details", study: "Study", judged: list[dict[str, Any]], last: "Result | None"
) -> str | None:
    """Say in a sentence why a trial ended, None if it has not or if its reason says it all."""
    match details.trial.reason:
        case Reason.EARLY_STOPPED if judged:
            return _explain_rung(judged[-1], study)
        case Reason.RULE_STOPPED if last is not None:
            return _explain_rule(study, last)
        case Reason.FAILED | Reason.LOST if details.attempts:
            newest = details.attempts[-1]
            spent = _spent(details.trial)
            words = f"{newest.error_type}: {newest.error_message}" if newest.error_type else None
            return f"{spent}; {words}" if words else spent
    return None


def _spent(trial: "TrialRow") -> str:
    losses = f"{trial.losses} {'loss' if trial.losses == 1 else 'losses'}"
    return f"{counted(trial.failures, 'failure')}, {losses}"


def _explain_rung(judged: dict[str, Any], study: "Study") -> str:
    value, cutoff = (table_cell(judged[name], brief=True) for name in ("value", "cutoff"))
    at = f"{study.objective} at rung {judged['rung']} was {value}"
    if judged["cutoff"] is None:
        return f"{at}, which ranks worst"
    return f"{at}, worse than the cutoff {cutoff} of those that came before"


def _explain_rule(study: "Study", last: "Result") -> str | None:
    rule = first_hit(study.rules, last, objective=study.objective)
    if rule is None:
        return None
    return f"the rule {rule.metric}{rule.op}{rule.bound:g} was hit at step {last.step}"


def _document(
    details: "Details",
    study: "Study",
    attempts: Iterable[Any],
    judged: list[dict[str, Any]],
) -> dict[str, Any]:
    return _fields(details, study) | {
        "params": details.trial.params,
        "attempts": [
            {**row._asdict(), "traceback": full.traceback, "config": full.config}
            for row, full in zip(attempts, details.attempts, strict=True)
        ],
        "judged": judged,
    }


def _fields(details: "Details", study: "Study") -> dict[str, Any]:
    trial = details.trial
    return {
        "study": study.name,
        "number": trial.number,
        "state": trial.state,
        "reason": trial.reason,
        "origin": trial.origin,
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


def _print_trial(details: "Details", study: "Study", why: str | None) -> None:
    fields = _fields(details, study)
    metric = str(study.objective)
    reason = fields.pop("reason")
    print_fields(
        {
            "trial": f"{fields.pop('number')} of {fields.pop('study')}",
            "state": f"{fields.pop('state')}{f': {reason}' if reason else ''}",
            "why": why,
            "params": assignments(study.space.flatten(details.trial.params)),
            f"last {metric}": fields.pop("value"),
            f"best {metric}": fields.pop("best_value"),
        }
        | fields
    )


def _print_part(title: str, columns: tuple[str, ...], rows: Iterable[dict[str, Any]]) -> None:
    listed = [[row[column] for column in columns] for row in rows]
    if listed:
        click.echo(f"\n{title}")
        print_table(columns, listed)
