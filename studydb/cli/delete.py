"""`delete`: a study with all that is its own."""

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
"""The newest so many are asked for their hosts."""


@click.command()
@study_argument
@click.option("--yes", is_flag=True, help="Yes, delete it.")
@storage_option
def delete(*, name: str, yes: bool, storage: Storage) -> None:
    """
    Delete NAME: its trials, results and checkpoints, and what its trials printed on this host.

    Nothing of it may be running; who is refused finds the study stopped, and calls again later.
    """
    from studydb.study import delete_study

    with opened_study(storage, name) as study:
        trials, shown = counted(study.counts.total, "trial"), study.storage
        elsewhere = _output_elsewhere(study)
    if not yes:
        raise UsageError(
            f"Study {name!r} in {shown} would be deleted with its {trials}, their results "
            "and checkpoints, for good. Add --yes if that is meant."
        )
    delete_study(name, storage=storage.url)
    click.echo(f"Study {name!r}: deleted with its {trials}, results and checkpoints.{elsewhere}")


def _output_elsewhere(study: "Study") -> str:
    """Say where output stays that only its own host can remove."""
    from studydb.operations import reading

    workers = reading.list_workers(study.database, study.record, most=MOST_WORKERS)
    hosts = sorted({worker.process.host for worker in workers} - {socket.gethostname()})
    if not hosts or not study.database.features.several_hosts:
        return ""
    return (
        f"\nWhat was printed on {visible(', '.join(hosts))} is still there, below "
        f"{study.database.locations.log_root(study.record)}."
    )
