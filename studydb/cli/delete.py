"""`delete`: delete a study with its trials, results, checkpoints, and output on this host."""

import socket
from typing import TYPE_CHECKING

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.domain.errors import UsageError
from studydb.domain.text.display import counted, visible

if TYPE_CHECKING:
    from studydb.study import Study

MOST_WORKERS = 1000
"""The hosts of at most this many workers are looked up, beginning with the newest worker."""


@click.command()
@study_argument
@click.option("--yes", is_flag=True, help="Confirm: delete the study.")
@click.option(
    "--skip-failing-stores",
    is_flag=True,
    help="Leave the checkpoints in stores that cannot remove them.",
)
@storage_option
def delete(*, name: str, yes: bool, skip_failing_stores: bool, storage: Storage) -> None:
    """
    Delete NAME: its trials, results and checkpoints, and on this host the trials' output and files.

    If a trial is running, the study is stopped but not deleted: run the command again later.
    --skip-failing-stores is for buckets and disks that are gone for good.
    """
    from studydb.study import delete_study

    with opened_study(storage, name) as study:
        trials, shown = counted(study.counts.total, "trial"), study.storage
        elsewhere = _output_elsewhere(study)
    if not yes:
        raise UsageError(
            f"Study {name!r} in {shown} would be deleted with its {trials}, their results "
            "and checkpoints, for good. Add --yes to confirm."
        )
    skipped = delete_study(name, storage=storage.url, skip_failing_stores=skip_failing_stores)
    what = f"{trials} and results" if skipped else f"{trials}, results and checkpoints"
    click.echo(f"Study {name!r}: deleted with its {what}.{elsewhere}")
    for error in skipped:
        click.echo(f"Checkpoints may be left: {visible(error)}", err=True)


def _output_elsewhere(study: "Study") -> str:
    from studydb.operations.workers import list_workers

    found = list_workers(study.database, study.record, limit=MOST_WORKERS)
    hosts = sorted({worker.host for worker, _ in found.workers} - {socket.gethostname()})
    if not hosts or not study.database.features.several_hosts:
        return ""
    return (
        f"\nThe output and files of trials on {visible(', '.join(hosts))} are still there, below "
        f"{study.database.locations.log_root(study.record)}."
    )
