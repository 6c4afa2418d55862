"""`clone`: make a study with the definition of another study."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.cli.printing import print_next


@click.command()
@study_argument
@click.argument("new", metavar="NEW")
@storage_option
def clone(*, name: str, new: str, storage: Storage) -> None:
    """
    Make the study NEW with the definition of NAME: its space, scheduler, limits, code and so on.

    NEW has no trials. Its code is signed with your key; you must have signed the code of NAME.
    """
    with opened_study(storage, name) as study:
        study.clone(new).close()
        trainable, suffix = study.record.trainable, storage.command_suffix(study.storage)
    click.echo(f"Study {new!r}: made like {name!r}, without trials.")
    quoted = shlex.quote(new)
    if trainable is None:
        print_next(f"studydb status {quoted}{suffix}")
    else:
        print_next(f"studydb worker --study {quoted}{suffix}")
