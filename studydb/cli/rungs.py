"""`rungs`: list the rungs at which a scheduler compares trials."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import (
    POSITIVE,
    Storage,
    format_option,
    storage_option,
    study_argument,
)
from studydb.cli.printing import print_next, print_rows
from studydb.domain.listed_rows import ListedRung

SPARE_COLUMNS = ("ranked", "top")


@click.command()
@study_argument
@click.option(
    "--limit", type=POSITIVE, default=100, metavar="N", help="List only the last N rungs."
)
@format_option
@storage_option
def rungs(*, name: str, limit: int, form: str, storage: Storage) -> None:
    """
    List the rungs of study NAME that trials have entered, ordered by bracket and step.

    entries: trials that were judged there. ranked: entries that are not NaN and whose trials are
    neither invalidated nor cloned. waiting: trials that wait there to be resumed. top: the share of
    ranked entries that reach `cutoff`. cutoff: the value by which ASHA and MedianStopping decide,
    and custom schedulers may decide; ASHA with the rule "syne_tune" decides by ranks instead.
    HyperBand and OneEpoch have no cutoff: they decide when a rung closes. best: the best value of a
    ranked entry. kept: the worst value that was kept when the rung closed.
    """
    from studydb.operations.reads import list_rungs

    with opened_study(storage, name) as study:
        rows = list_rungs(study.database, study.record, limit=limit)
        suffix = storage.command_suffix(study.storage)
    columns: tuple[str, ...] = ListedRung._fields
    if form == "table":  # so that a line has at most 80 characters
        columns = tuple(column for column in columns if column != "closed_at")
    shown = [[getattr(row, column) for column in columns] for row in rows]
    print_rows(columns, shown, form=form, noun="rungs", spare=SPARE_COLUMNS)
    if form == "table" and rows:
        print_next(f"studydb trials {shlex.quote(name)} --sort best{suffix}")
