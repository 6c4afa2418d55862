"""`pin`: keep a checkpoint whatever the study's `keep` says."""

import shlex

import click

from studydb.cli.control import subject
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument, trial_argument
from studydb.cli.printing import print_next


@click.command()
@study_argument
@trial_argument
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="S",
    help="The checkpoint of step S.  [default: the newest; with --remove, all]",
)
@click.option("--remove", is_flag=True, help="Remove pins that people made; pins for trials stay.")
@storage_option
def pin(*, name: str, trial: int | str, step: int | None, remove: bool, storage: Storage) -> None:
    """
    Pin a checkpoint of trial TRIAL of study NAME, so that it is kept until the pin is removed.

    A pinned checkpoint is deleted only with its study. A corrupt checkpoint is not restored by any
    trial, even if it is pinned.
    """
    with opened_study(storage, name) as study:
        steps = study.pin(trial, step=step, remove=remove)
        suffix = storage.command_suffix(study.storage)
    which = subject(name, [trial])
    if remove and not steps:
        click.echo(f"{which}: there was no pin to remove.")
        return
    did = "unpinned" if remove else "pinned"
    noun = "checkpoint of step" if len(steps) == 1 else "checkpoints of the steps"
    click.echo(f"{which}: {did} the {noun} {', '.join(map(str, steps))}.")
    if not remove:
        word = shlex.quote(str(trial))
        print_next(f"studydb pin {shlex.quote(name)} {word} --step {steps[0]} --remove{suffix}")
