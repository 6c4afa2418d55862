"""`worker`: run trials of a study."""

from collections.abc import Sequence
from contextlib import suppress

import click

from studydb.cli.options import Bytes, Storage, storage_option
from studydb.domain.records import LEASE_S
from studydb.domain.text.display import visible
from studydb.lease.retries import PATIENCE_S
from studydb.lease.room import SPILL_BYTES
from studydb.worker.worker_options import GRACE_S


@click.command()
@click.option("--study", required=True, metavar="NAME", help="The study to work on.")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many trials run at a time.",
)
@click.option(
    "--max-trials", type=click.IntRange(min=1), metavar="N", help="Exit after N attempts."
)
@click.option("--wait", is_flag=True, help="Do not exit when the study is done.")
@click.option(
    "--lease",
    type=float,
    default=LEASE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a claim lasts without a renewal.",
)
@click.option(
    "--patience",
    type=float,
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to keep training while the database does not answer.",
)
@click.option(
    "--grace",
    type=float,
    default=GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a stopped or preempted trial may take to save its state.",
)
@click.option("--workdir", metavar="DIR", help="The directory to search for the trainable first.")
@click.option(
    "--allow-import",
    multiple=True,
    metavar="P",
    help="Run an unsigned trainable if its import path begins with P. Repeatable.",
)
@click.option(
    "--spill-size",
    type=Bytes(),
    default=f"{SPILL_BYTES >> 30}G",
    show_default=True,
    metavar="BYTES",
    help="The limit of results on disk while the database does not answer: 500M, 4G; 0 for none.",
)
@click.option(
    "--start",
    type=click.Choice(["auto", "fresh"]),
    default="auto",
    show_default=True,
    help="auto: fork trials from a process that has imported the trainable, if that is safe.",
)
@storage_option
def worker(
    *,
    study: str,
    slots: int,
    max_trials: int | None,
    wait: bool,
    lease: float,
    patience: float,
    grace: float,
    workdir: str | None,
    allow_import: Sequence[str],
    spill_size: int,
    start: str,
    storage: Storage,
) -> int:
    """
    Run trials of a study until it is done.

    SIGTERM, Ctrl-C and a closed terminal release the running trials, with a checkpoint if the
    trainable saves one; a second signal kills them. Exit codes: 0 done, 128 + signal, 1 error, 2
    usage, 3 no trial has completed, and the study is done or has paused itself.
    """
    from studydb.worker.supervisor import run_worker
    from studydb.worker.worker_options import WorkerOptions

    options = WorkerOptions(
        storage=storage.url,
        study=study,
        slots=slots,
        max_trials=max_trials,
        wait=wait,
        lease_s=lease,
        patience_s=patience,
        grace_s=grace,
        workdir=workdir,
        allow_imports=tuple(allow_import),
        spill_bytes=spill_size,
        warm_starts=start == "auto",
        say=_say,
    )
    return run_worker(options)


def _say(line: str) -> None:
    with suppress(OSError):  # stderr is closed; the work continues
        click.echo(visible(line, keep="\n\t"), err=True)
