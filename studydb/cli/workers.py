"""`workers`: list the processes that run trials or have run them, and their health."""

import click

from studydb.cli.opening import opened, opened_study
from studydb.cli.options import POSITIVE, Storage, format_option, storage_option
from studydb.cli.printing import print_rows
from studydb.domain.text.display import SHORT_ID

COLUMNS = (
    "worker",
    "study",
    "host",
    "pid",
    "slots",
    "running",
    "health",
    "uses",
    "version",
    "started_at",
    "seen_at",
    "ended_at",
)

SPARE_COLUMNS = ("version", "ended_at", "started_at", "pid", "slots")


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--limit", type=POSITIVE, default=100, metavar="N", help="List the newest N only.")
@format_option
@storage_option
def workers(*, name: str | None, limit: int, form: str, storage: Storage) -> None:
    """
    List the workers of all studies, or of NAME, newest first.

    health: alive, draining (asked to end), silent (not seen for longer than a lease lasts), dead (a
    process of this host that no longer exists), or ended. uses: the resources that the trials of a
    live worker use, and the resources that the worker offers; empty if trials do not ask for
    resources.
    """
    from studydb.analysis.fit_text import load_text
    from studydb.operations.workers import list_workers

    if name is None:
        with opened(storage) as database:
            found = list_workers(database, limit=limit)
    else:
        with opened_study(storage, name) as study:
            found = list_workers(study.database, study.record, limit=limit)
    loads = found.loads
    rows = [
        {
            **worker._asdict(),
            "health": health,
            "uses": load_text(loads[worker.worker]) if worker.worker in loads else None,
        }
        for worker, health in found.workers
    ]
    if form == "table":
        rows = [{**row, "worker": row["worker"][:SHORT_ID]} for row in rows]
    shown = [[row[name] for name in COLUMNS] for row in rows]
    print_rows(COLUMNS, shown, form=form, noun="workers", spare=SPARE_COLUMNS)
