"""`set`: change a setting of a study."""

from collections.abc import Sequence

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.domain.errors import UsageError
from studydb.domain.text.display import visible
from studydb.domain.text.suggestions import did_you_mean

KEYS = ("checkpoints",)


@click.command(name="set")
@study_argument
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@storage_option
def set(*, name: str, settings: Sequence[str], storage: Storage) -> None:  # noqa: A001  the command
    """
    Change a setting of NAME: checkpoints=URL is the store of new checkpoints.

    Attempts that start later save to URL: a directory that all workers see, or inline: (the
    database). Older checkpoints stay in their store, and trials are restored from that store.
    """
    given = read_settings(settings)
    with opened_study(storage, name) as study:
        study.set(checkpoints=given["checkpoints"])
        place = study.record.checkpoints or ""
    click.echo(f"Study {name!r}: attempts that start later save checkpoints to {visible(place)}.")


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    """
    Read "KEY=VALUE" texts.

    Raises:
        UsageError: A text is not KEY=VALUE, names no setting, or repeats a setting.
    """
    given: dict[str, str] = {}
    for text in settings:
        key, sign, value = text.partition("=")
        if key not in KEYS:
            near = did_you_mean(key, KEYS)
            raise UsageError(f"{key!r} cannot be set. Settings: {', '.join(KEYS)}.{near}")
        if not sign or not value:
            raise UsageError(f"{key!r} has no value; write {key}=VALUE.")
        if key in given:
            raise UsageError(f"{key!r} is given twice; give it once.")
        given[key] = value
    return given
