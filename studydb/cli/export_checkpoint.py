"""`export-checkpoint`: copy a trial's checkpoint to a folder."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.domain.errors import NotFound
from studydb.domain.objective import Objective
from studydb.domain.records import CheckpointKind
from studydb.domain.text.display import visible

if TYPE_CHECKING:
    from studydb.study.frozen_trial import Checkpoint, FrozenTrial

MOST_STEPS = 10
"""How many steps an error lists."""


@click.command("export-checkpoint")
@study_argument
@click.argument("places", metavar="[TRIAL] DIR", nargs=-1, required=True)
@click.option("--step", type=click.IntRange(min=0), metavar="S", help="Export that of step S.")
@click.option(
    "--best", is_flag=True, help="Export that with the best value; without TRIAL, the best trial's."
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
    Copy a checkpoint of TRIAL of NAME to a new folder DIR; by default the newest checkpoint.

    A directory is copied as it was saved. A dict becomes DIR/checkpoint.pkl. Python's pickle.load
    reads that file if the classes of the values can be imported. A checkpoint that no key of yours
    signed is refused, because opening it could run code.
    """
    is_of_best_trial = best and len(places) == 1
    if not is_of_best_trial and len(places) != len(("TRIAL", "DIR")):
        usage = "NAME --best DIR" if best else "NAME TRIAL DIR, or NAME --best DIR"
        raise click.UsageError(f"Write `studydb export-checkpoint {usage}`.", ctx)
    if best and step is not None:
        raise click.UsageError("Give --step or --best, not both.", ctx)
    with opened_study(storage, name) as study:
        if is_of_best_trial:
            trial = study.best_trial
        else:
            trial = study.trial(TrialWord().convert(places[0], None, ctx))
        checkpoint = _chosen(trial, study.record.objective, step=step, best=best)
        target = checkpoint.export(places[-1])
    click.echo(
        f"Exported the checkpoint of trial {trial.number} (step {checkpoint.step}, "
        f"{checkpoint.kind}) to {visible(str(target))}."
    )
    if checkpoint.kind == CheckpointKind.DICT:
        file = shlex.quote(str(target / "checkpoint.pkl"))
        click.echo(f"It is a pickle: `python -m pickle {file}` shows it.")


def _chosen(
    trial: "FrozenTrial", objective: Objective, *, step: int | None, best: bool
) -> "Checkpoint":
    """
    Choose a trial's checkpoint: that of a step, or that with the best value, or the newest.

    Raises:
        NotFound: The trial has no such checkpoint; the message names the steps that it has.
    """
    saved = trial.checkpoints
    if step is not None:
        found = next((each for each in reversed(saved) if each.step == step), None)
        if found is None and saved:
            steps = ", ".join(str(each.step) for each in saved[-MOST_STEPS:])
            raise NotFound(
                f"Trial {trial.number} has no checkpoint of step {step}. Its newest checkpoints "
                f"are of the steps {steps}; which are kept is a setting of the study."
            )
    elif best:
        valued = [each for each in saved if each.value is not None]
        found = min(valued, key=lambda each: objective.score(each.value or 0.0), default=None)
        found = found or trial.checkpoint
    else:
        found = trial.checkpoint
    if found is None:
        raise NotFound(
            f"Trial {trial.number} has no checkpoint. A trainable saves one by "
            "report(metrics, checkpoint=…), with a dict or the path of a directory."
        )
    return found
