"""`invalidate`: leave trials with wrong values out of rankings, frames and searches."""

import shlex
from collections.abc import Sequence

import click

from studydb.cli.control import subject
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.cli.printing import print_next
from studydb.domain.errors import UsageError
from studydb.domain.life.states import State


@click.command()
@study_argument
@click.argument("trials", metavar="TRIAL...", type=TrialWord(), nargs=-1, required=True)
@click.option(
    "--reason",
    metavar="TEXT",
    help="Why the values are wrong; kept as a note on each trial. Required without --undo.",
)
@click.option("--undo", is_flag=True, help="Let the trials count again.")
@storage_option
def invalidate(
    *, name: str, trials: Sequence[int | str], reason: str | None, undo: bool, storage: Storage
) -> None:
    """
    Invalidate trials of NAME whose values are wrong; their rows are kept.

    An invalidated trial is never the best, is not in data frames, and does not rank in open rungs.
    Searchers do not learn from it. If it has not ended, it is stopped. Earlier decisions remain.
    """
    if not undo and not reason:
        raise UsageError("Say why, by --reason TEXT.")
    with opened_study(storage, name) as study:
        study.invalidate(*trials, reason=reason or "", undo=undo)
        named = [] if undo else [study.trial(trial) for trial in dict.fromkeys(trials)]
        suffix = storage.command_suffix(study.storage)
    click.echo(f"{subject(name, trials)}: {'valid again' if undo else 'invalidated'}.")
    if running := [trial.number for trial in named if trial.state is State.RUNNING]:
        verb = "is" if len(running) == 1 else "are"
        click.echo(f"{subject(name, running)} {verb} being stopped.")
    if not undo:
        words = " ".join(shlex.quote(str(trial)) for trial in trials)
        print_next(f"studydb invalidate {shlex.quote(name)} {words} --undo{suffix}")
