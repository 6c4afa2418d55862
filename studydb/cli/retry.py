"""`retry`: run ended trials again."""

import shlex
from collections.abc import Sequence

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.cli.printing import print_next, print_resumption
from studydb.domain.errors import UsageError
from studydb.domain.life.selections import Selection
from studydb.domain.text.display import counted

MOST_NAMED = 20
"""The most clones whose numbers are printed."""


@click.command()
@study_argument
@click.argument("trials", metavar="[TRIAL]...", type=TrialWord(), nargs=-1)
@click.option("--errored", is_flag=True, help="All trials that ended with an error.")
@click.option("--cancelled", is_flag=True, help="All trials that a person has stopped.")
@click.option(
    "--finished", is_flag=True, help="All ended trials except errored and cancelled trials."
)
@click.option("--all", "every", is_flag=True, help="All trials that have ended.")
@click.option("--from-scratch", is_flag=True, help="Begin without a checkpoint.")
@storage_option
def retry(
    *,
    name: str,
    trials: Sequence[int | str],
    errored: bool,
    cancelled: bool,
    finished: bool,
    every: bool,
    from_scratch: bool,
    storage: Storage,
) -> None:
    """
    Run ended trials of NAME again. Each gets a clone: a new trial with the same parameters.

    A clone goes on from the newest checkpoint of the ended trial, and does not count toward
    --num-trials. For a trial that has completed, give --from-scratch: its newest checkpoint may
    leave nothing to train. --errored, --cancelled, --finished and --all leave out trials that have
    a clone already or are invalidated.
    """
    given = zip(Selection, (errored, cancelled, finished, every), strict=True)
    chosen = [selection for selection, is_given in given if is_given]
    if len(chosen) + bool(trials) != 1:
        raise UsageError(
            "Either name the trials to run again, or give one of --errored, --cancelled, "
            "--finished, --all."
        )
    with opened_study(storage, name) as study:
        select = chosen[0] if chosen else None
        clones = study.retry(*trials, select=select, from_scratch=from_scratch)
        status, suffix = study.status, storage.command_suffix(study.storage)
    if not clones:
        click.echo(f"Study {name!r}: no trial to run again.")
        return
    listed = ", ".join(map(str, clones[:MOST_NAMED])) + (", …" * (len(clones) > MOST_NAMED))
    noun = "trial" if len(clones) == 1 else "trials"
    click.echo(f"Study {name!r}: {counted(len(clones), 'clone')}, {noun} {listed}.")
    if not print_resumption(status, name, suffix):
        print_next(f"studydb status {shlex.quote(name)}{suffix}")
