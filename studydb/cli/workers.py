"""`workers`: who works."""

import click

from studydb.cli.opening import opened, opened_study
from studydb.cli.options import Storage, format_option, storage_option
from studydb.cli.printing import print_rows

COLUMNS = (
    "worker",
    "study",
    "host",
    "pid",
    "slots",
    "running",
    "health",
    "version",
    "started_at",
    "seen_at",
    "ended_at",
)

SPARE_COLUMNS = ("version", "ended_at", "started_at", "pid", "slots")
SHORT_ID = 8
"""Characters of a worker's id in a table: as it calls itself, and enough for `drain`."""


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="The newest so many.",
)
@format_option
@storage_option
def workers(*, name: str | None, limit: int, form: str, storage: Storage) -> None:
    """
    List the workers of all studies, or of NAME, newest first.

    health: alive, draining (asked to end), silent (not seen for longer than its lease), dead (its
    process is gone from this host), or ended.
    """
    from studydb.operations import listing

    if name is None:
        with opened(storage) as database:
            roll = listing.roll(database, most=limit)
    else:
        with opened_study(storage, name) as study:
            roll = listing.roll(study.database, study.record, most=limit)
    rows = [{**each._asdict(), "health": roll.health(each)} for each in roll.workers]
    if form == "table":
        rows = [{**row, "worker": row["worker"][:SHORT_ID]} for row in rows]
    shown = [[row[name] for name in COLUMNS] for row in rows]
    print_rows(COLUMNS, shown, form=form, of="workers", spare=SPARE_COLUMNS)
