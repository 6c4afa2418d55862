"""`worker`: run trials of a study."""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from studydb.cli.options import POSITIVE, Bytes, Spec, Storage, storage_option
from studydb.domain.class_queues import RESERVE_AFTER_S
from studydb.domain.records import LEASE_S
from studydb.domain.text.display import visible
from studydb.lease.retries import PATIENCE_S
from studydb.lease.room import SPILL_BYTES
from studydb.settings import CACHE_SIZE, DEFAULT_CACHE_BYTES
from studydb.worker.worker_options import GRACE_S, MOST_SLOTS


def _seconds_option(flag: str, default: float, meaning: str) -> Callable[..., Any]:
    return click.option(flag, type=float, default=default, metavar="SECONDS", help=meaning)


@click.command()
@click.option("--study", required=True, metavar="NAME", help="The study to work on.")
@click.option(
    "--slots",
    type=click.IntRange(1, MOST_SLOTS),
    default=1,
    metavar="N",
    help="How many trials run at a time.",
)
@click.option("--max-trials", type=POSITIVE, metavar="N", help="Exit after N attempts.")
@click.option("--wait", is_flag=True, help="Do not exit when the study is done.")
@_seconds_option("--lease", LEASE_S, "How long a lease lasts without a renewal.")
@_seconds_option(
    "--patience", PATIENCE_S, "How long to keep training while the database does not answer."
)
@_seconds_option(
    "--grace", GRACE_S, "How long a stopped or preempted trial may take to save its state."
)
@click.option(
    "--workdir",
    metavar="DIR",
    help="The working directory; the trainable is looked for there first.",
)
@click.option(
    "--chdir",
    type=click.Choice(["workdir", "trial"]),
    default="workdir",
    help="Where trials run: in the working directory, or each trial in its own directory.",
)
@click.option(
    "--allow-import",
    multiple=True,
    metavar="P",
    help="Run unsigned code from P: a package, a module, or module:function. Repeatable.",
)
@click.option(
    "--spill-size",
    type=Bytes(),
    default=f"{SPILL_BYTES >> 30}G",
    metavar="BYTES",
    help="How many bytes of results may wait on disk for the database, such as 500M; 0: none.",
)
@click.option(
    "--cache-size",
    type=Bytes(),
    default=f"{DEFAULT_CACHE_BYTES >> 30}GB",
    envvar=("STUDYDB_WORKER_CACHE_SIZE", CACHE_SIZE),
    metavar="BYTES",
    help="How many bytes of remote checkpoints this host keeps for later resumes; 0: keep none.",
)
@click.option(
    "--preempt-signal",
    type=click.Choice(["USR1", "USR2"]),
    help="A signal that releases the running trials as SIGTERM does; Slurm's --signal sends one.",
)
@click.option(
    "--start",
    type=click.Choice(["auto", "fresh"]),
    default="auto",
    help="auto: import the trainable once and fork trials, if safe; fresh: each trial imports it.",
)
@click.option(
    "--cpus",
    type=float,
    metavar="N",
    help="How many CPUs trials share.  [default: those that this process may use]",
)
@click.option(
    "--gpus",
    default="auto",
    metavar="GPUS",
    help="The GPUs that trials share: auto, none, or indices or UUIDs such as 0,1.",
)
@click.option(
    "--memory-gb",
    type=float,
    metavar="N",
    help="How much memory trials share, in 10^9 bytes.  [default: the host's or container's]",
)
@click.option(
    "--resource",
    "resource",
    multiple=True,
    type=Spec(),
    metavar="NAME=N",
    help="An amount of any other resource that trials ask for, such as licence=2. Repeatable.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    type=Spec(),
    metavar="TAG",
    help="A word that studies may require, such as a100. Repeatable.",
)
@_seconds_option(
    "--reserve-after",
    RESERVE_AFTER_S,
    "How long smaller trials may overtake a trial that does not fit yet; then they wait for it.",
)
@storage_option
def worker(
    *,
    lease: float,
    patience: float,
    grace: float,
    allow_import: Sequence[str],
    spill_size: int,
    cache_size: int,
    preempt_signal: str | None,
    start: str,
    chdir: str,
    resource: Sequence[str],
    tags: Sequence[str],
    reserve_after: float,
    storage: Storage,
    **options: Any,
) -> int:
    """
    Run trials of a study until it is done.

    SIGTERM, Ctrl-C and a closed terminal release the running trials, with a checkpoint if the
    trainable saves one; a second signal kills them.

    Exit codes: 0: the study is done, --max-trials is reached, or the worker was drained; 1: an
    error; 2: wrong usage; 3: the study has paused itself because of failures, or it is over with
    errors and without a successful trial; 128 + N: signal N ended the worker.
    """
    from studydb.worker.supervisor import run_worker
    from studydb.worker.worker_options import WorkerOptions

    return run_worker(
        WorkerOptions(
            storage=storage.url,
            lease_s=lease,
            patience_s=patience,
            grace_s=grace,
            allow_imports=tuple(allow_import),
            spill_bytes=spill_size,
            cache_bytes=cache_size,
            preempt_signal=signal.Signals[f"SIG{preempt_signal}"] if preempt_signal else 0,
            warm_starts=start == "auto",
            runs_in_directory=chdir == "trial",
            resources=",".join(resource),
            tags=tuple(tags),
            reserve_after_s=reserve_after,
            say=_say,
            **options,  # study, slots, max_trials, wait, workdir, cpus, gpus, memory_gb
        )
    )


def _say(line: str) -> None:
    with suppress(OSError):  # if stderr is closed, the work continues
        click.echo(visible(line, keep="\n\t"), err=True)
