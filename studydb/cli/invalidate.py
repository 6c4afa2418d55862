"""`invalidate`: leave trials with wrong values out of rankings, frames and searches."""

import shlex
from collections.abc import Sequence

import click

from studydb.cli.control import subject
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.cli.printing import print_next
from studydb.domain.errors import UsageError


@click.command()
@study_argument
@click.argument("trials", metavar="TRIAL...", type=TrialWord(), nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", help="Why the values are wrong; a note on each trial.")
@click.option("--undo", is_flag=True, help="Let the trials count again.")
@storage_option
def invalidate(
    *, name: str, trials: Sequence[int | str], reason: str | None, undo: bool, storage: Storage
) -> None:
    """
    Invalidate trials of NAME whose values are wrong; their rows are kept.

    Invalidated trials are not best, not in data frames, and do not rank in open rungs. Searchers do
    not learn from them. A running trial is stopped. Decisions that were made already stand.
    """
    if not undo and not reason:
        raise UsageError("Say why, by --reason TEXT.")
    with opened_study(storage, name) as study:
        study.invalidate(*trials, reason=reason or "", undo=undo)
        suffix = storage.command_suffix(study.storage)
    did = "count again" if undo else "invalidated; running trials are being stopped"
    click.echo(f"{subject(name, trials)}: {did}.")
    if not undo:
        words = " ".join(shlex.quote(str(trial)) for trial in trials)
        print_next(f"studydb invalidate {shlex.quote(name)} {words} --undo{suffix}")
