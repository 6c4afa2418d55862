"""`checkpoints`: list the checkpoints of a study or a trial."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import (
    POSITIVE,
    Storage,
    TrialWord,
    format_option,
    storage_option,
    study_argument,
)
from studydb.cli.printing import print_next, print_rows
from studydb.domain.listed_rows import ListedCheckpoint
from studydb.domain.text.display import size_text

TABLE_COLUMNS = ("number", "step", "value", "size", "kind", "pins", "created_at")
SPARE_COLUMNS = ("kind", "pins")


@click.command()
@study_argument
@click.argument("trial", metavar="[TRIAL]", type=TrialWord(), required=False)
@click.option(
    "--limit",
    type=POSITIVE,
    default=100,
    metavar="N",
    help="Without TRIAL, list the checkpoints of the newest N trials.",
)
@format_option
@storage_option
def checkpoints(
    *, name: str, trial: int | str | None, limit: int, form: str, storage: Storage
) -> None:
    """
    List the kept checkpoints of TRIAL, or of the newest trials of NAME.

    value: the value of the study's metric at the step of the checkpoint. pins: how many pins keep
    the checkpoint, for people and for trials that begin from it.
    """
    from studydb.operations.reads import list_checkpoints, list_checkpoints_of

    with opened_study(storage, name) as study:
        if trial is None:
            rows = list_checkpoints(study.database, study.record, limit=limit)
        else:
            number = study.number_of(trial)
            rows = list_checkpoints_of(study.database, study.record, number)
        suffix = storage.command_suffix(study.storage)
    if form != "table":
        print_rows(ListedCheckpoint._fields, rows, form=form)
        return
    fields = [{**row._asdict(), "size": size_text(row.size_bytes)} for row in rows]
    shown = [[each[column] for column in TABLE_COLUMNS] for each in fields]
    print_rows(TABLE_COLUMNS, shown, form=form, noun="checkpoints", spare=SPARE_COLUMNS)
    if rows:
        last = rows[-1]
        print_next(
            f"studydb export-checkpoint {shlex.quote(name)} {last.number} DIR "
            f"--step {last.step}{suffix}"
        )
