"""`gc`: delete checkpoints that are no longer kept, and what crashes have left."""

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.domain.errors import CheckpointError
from studydb.domain.text.display import counted, size_text


@click.command()
@study_argument
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what would be deleted.")
@storage_option
def gc(*, name: str, dry_run: bool, storage: Storage) -> None:
    """
    Delete the checkpoints of NAME that are no longer kept, and what crashes have left.

    The command deletes checkpoints that neither the study's keep=… nor a pin keeps; the bytes of
    removed checkpoints, if a crash or a failing store has left them; and uploads that were cut off.
    Usually there is nothing to delete, because workers immediately delete what their trials no
    longer keep. The command may run while workers run. Corrupt checkpoints stay.
    """
    with opened_study(storage, name) as study:
        done = study.gc(dry_run=dry_run)
    did = "would be deleted" if dry_run else "deleted"
    uploads = f" and {counted(done.n_uploads, 'cut-off upload')}" if done.n_uploads else ""
    what = f"{counted(done.n, 'checkpoint')} ({size_text(done.size_bytes)}){uploads}"
    click.echo(f"Study {name!r}: {what} {did}.")
    if done.left or done.n_uploads_left:
        where = f" (the first: {done.left[0]!r})" if done.left else ""
        left = [
            counted(n, what)
            for n, what in ((len(done.left), "checkpoint"), (done.n_uploads_left, "cut-off upload"))
            if n
        ]
        raise CheckpointError(
            f"The bytes of {' and '.join(left)} of {name!r} may still be there{where}, because a "
            "store fails, or this host does not have it. Repeat the command on a host that can "
            "write to all stores of the study. If a directory was deleted on purpose, make the "
            f"study's folder in it again: `mkdir -p DIRECTORY/{study.record.uuid}`."
        )
