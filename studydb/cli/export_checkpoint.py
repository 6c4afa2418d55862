"""`export-checkpoint`: copy a trial's newest checkpoint to a folder."""

import shlex
from collections.abc import Sequence

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.domain.errors import NotFound
from studydb.domain.records import CheckpointKind
from studydb.domain.text.display import visible


@click.command("export-checkpoint")
@study_argument
@click.argument("places", metavar="[TRIAL] DIR", nargs=-1, required=True)
@click.option(
    "--best", is_flag=True, help="Export the best trial's checkpoint, instead of TRIAL's."
)
@storage_option
@click.pass_context
def export_checkpoint(
    ctx: click.Context, *, name: str, places: Sequence[str], best: bool, storage: Storage
) -> None:
    """
    Copy the newest checkpoint of TRIAL of NAME, or of the best trial, to a new folder DIR.

    A directory is copied as it was saved. A dict becomes DIR/checkpoint.pkl. Python's pickle.load
    reads that file if the classes of the values can be imported. A checkpoint that no key of yours
    signed is refused, because opening it could run code.
    """
    if len(places) != (1 if best else 2):
        usage = "NAME --best DIR" if best else "NAME TRIAL DIR, or NAME --best DIR"
        raise click.UsageError(f"Write `studydb export-checkpoint {usage}`.", ctx)
    with opened_study(storage, name) as study:
        trial = study.best_trial if best else study.trial(TrialWord().convert(places[0], None, ctx))
        checkpoint = trial.checkpoint
        if checkpoint is None:
            raise NotFound(
                f"Trial {trial.number} of {name!r} has no checkpoint. A trainable saves one by "
                "report(metrics, checkpoint=…), with a dict or the path of a directory."
            )
        target = checkpoint.export(places[-1])
    click.echo(
        f"Exported the checkpoint of trial {trial.number} (step {checkpoint.step}, "
        f"{checkpoint.kind}) to {visible(str(target))}."
    )
    if checkpoint.kind == CheckpointKind.DICT:
        file = shlex.quote(str(target / "checkpoint.pkl"))
        click.echo(f"It is a pickle: `python -m pickle {file}` shows it.")
