"""`rename`: give a study another name."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option
from studydb.cli.printing import print_next


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@storage_option
def rename(*, old: str, new: str, storage: Storage) -> None:
    """Give the study OLD the name NEW; its workers continue."""
    with opened_study(storage, old) as study:
        study.rename(new)
        suffix = storage.command_suffix(study.storage)
    click.echo(f"Study {old!r}: renamed to {new!r}.")
    print_next(f"studydb status {shlex.quote(new)}{suffix}")
