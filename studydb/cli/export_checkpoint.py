"""`export-checkpoint` copies a trial's checkpoint; `export-model` writes the model in it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.domain.checkpoint import CheckpointKind
from studydb.domain.errors import NotFound, StudydbError
from studydb.domain.failures import failure_of
from studydb.domain.text.display import printed, visible
from studydb.settings import expanded

if TYPE_CHECKING:
    from studydb.study.frozen_trial import Checkpoint, FrozenTrial
    from studydb.study.handle import Study

FAILED = 1

MOST_STEPS = 10
"""The most steps that an error message lists."""


@click.command("export-checkpoint")
@study_argument
@click.argument("places", metavar="[TRIAL] DIR", nargs=-1, required=True)
@click.option("--step", type=click.IntRange(min=0), metavar="S", help="The checkpoint of step S.")
@click.option(
    "--best",
    is_flag=True,
    help="The checkpoint with the best value. Without TRIAL, the best trial is meant.",
)
@storage_option
@click.pass_context
def export_checkpoint(
    ctx: click.Context,
    *,
    name: str,
    places: Sequence[str],
    step: int | None,
    best: bool,
    storage: Storage,
) -> None:
    """
    Copy a checkpoint of trial TRIAL of study NAME to a new folder DIR.

    By default, the newest checkpoint is copied.

    A directory is copied as it was saved. A dict becomes DIR/checkpoint.pkl. Python's pickle.load
    reads that file if the classes of the values can be imported. A checkpoint that no key of yours
    signed is refused, because opening it could run code.
    """
    with opened_study(storage, name) as study:
        trial, checkpoint = _picked(ctx, study, places, step=step, best=best)
        target = checkpoint.export(places[-1])
    click.echo(
        f"Exported the checkpoint of trial {trial.number} (step {checkpoint.step}, "
        f"{checkpoint.kind}) to {visible(str(target))}."
    )
    if checkpoint.kind == CheckpointKind.DICT:
        file = shlex.quote(str(target / "checkpoint.pkl"))
        click.echo(f"It is a pickle: `python -m pickle {file}` shows it.")


@click.command("export-model")
@study_argument
@click.argument("places", metavar="[TRIAL] DIR", nargs=-1, required=True)
@click.option("--step", type=click.IntRange(min=0), metavar="S", help="From step S's checkpoint.")
@click.option(
    "--best",
    is_flag=True,
    help="From the checkpoint with the best value. Without TRIAL, the best trial is meant.",
)
@storage_option
@click.pass_context
def export_model(
    ctx: click.Context,
    *,
    name: str,
    places: Sequence[str],
    step: int | None,
    best: bool,
    storage: Storage,
) -> int:
    """
    Let the trainable of study NAME write its model to a folder DIR, from a checkpoint of TRIAL.

    By default, the newest checkpoint is used. A trainable that is a class needs a method
    export_model(self, directory); one that is a function needs an attribute export_model, which is
    a function of (config, checkpoint, directory). Your code runs here, in this process.
    """
    from studydb.study.exporting import export_model as write_model

    target, workdir = expanded(places[-1]).absolute(), Path.cwd()
    with opened_study(storage, name) as study:
        trial, checkpoint = _picked(ctx, study, places, step=step, best=best)
        stores = study.database.locations.checkpoint_stores(study.record)
        try:
            write_model(study.record, trial, checkpoint, target, workdir=workdir, stores=stores)
        except StudydbError:
            raise
        except Exception as error:  # noqa: BLE001  the user's code may raise anything
            click.echo(printed(failure_of(error).traceback), err=True, nl=False)
            return FAILED
    click.echo(
        f"Exported the model of trial {trial.number} (step {checkpoint.step}) to "
        f"{visible(str(target))}."
    )
    return 0


def _picked(
    ctx: click.Context, study: "Study", places: Sequence[str], *, step: int | None, best: bool
) -> "tuple[FrozenTrial, Checkpoint]":
    """Read the words [TRIAL] DIR; find the trial and its checkpoint."""
    is_of_best_trial = best and len(places) == 1
    if not is_of_best_trial and len(places) != len(("TRIAL", "DIR")):
        usages = ["NAME --best DIR"] if best else ["NAME TRIAL DIR", "NAME --best DIR"]
        commands = " or ".join(f"`studydb {ctx.info_name} {usage}`" for usage in usages)
        raise click.UsageError(f"Write {commands}.", ctx)
    if best and step is not None:
        raise click.UsageError("Give --step or --best, not both.", ctx)
    if is_of_best_trial:
        trial = study.best_trial
    else:
        trial = study.trial(TrialWord().convert(places[0], None, ctx))
    return trial, _chosen(trial, step=step, best=best)


def _chosen(trial: "FrozenTrial", *, step: int | None, best: bool) -> "Checkpoint":
    """
    Choose a trial's checkpoint: that of a step, the one with the best value, or the newest.

    Raises:
        NotFound: The trial has no such checkpoint. For a missing step, the message names the steps
            of the trial's newest checkpoints, if the trial has any.
    """
    if step is not None:
        saved = trial.checkpoints
        found = next((each for each in reversed(saved) if each.step == step), None)
        if found is None and saved:
            steps = ", ".join(str(each.step) for each in saved[-MOST_STEPS:])
            raise NotFound(
                f"Trial {trial.number} has no checkpoint of step {step}. Its newest checkpoints "
                f"are of the steps {steps}; the study's setting `keep` says which are kept."
            )
    elif best:
        found = trial.best_checkpoint
    else:
        found = trial.checkpoint
    if found is None:
        raise NotFound(
            f"Trial {trial.number} has no checkpoint. A trainable saves one by "
            "report(metrics, checkpoint=…), with a dict or the path of a directory."
        )
    return found
