"""`gc`: delete the bytes of removed checkpoints."""

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.domain.errors import CheckpointError
from studydb.domain.text.display import size_text


@click.command()
@study_argument
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what would be deleted.")
@storage_option
def gc(*, name: str, dry_run: bool, storage: Storage) -> None:
    """
    Delete the bytes of removed checkpoints of NAME that a crash or a failing store has left.

    Workers delete what their trials no longer keep at once, so there is usually nothing. The
    command may run while workers do. Kept checkpoints and damaged ones stay.
    """
    with opened_study(storage, name) as study:
        done = study.gc(dry_run=dry_run)
    noun = "removed checkpoint" if done.n == 1 else "removed checkpoints"
    did = "would be deleted" if dry_run else "deleted"
    click.echo(f"Study {name!r}: {done.n} {noun} ({size_text(done.size_bytes)}) {did}.")
    if done.left:
        raise CheckpointError(
            f"The bytes of {len(done.left)} removed checkpoints of {name!r} are still in "
            f"{done.left[0]!r}, because the store fails. Repeat the command on a host that can "
            "write there."
        )
