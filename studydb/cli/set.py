"""`set`: change settings of a study."""

from collections.abc import Sequence
from typing import Any

import click

from studydb.cli.create import read_code
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.domain.errors import UsageError
from studydb.domain.limits import LIMITS
from studydb.domain.text.display import visible
from studydb.domain.text.suggestions import did_you_mean

KEYS = ("checkpoints", "trainable", "keep", *LIMITS)


class _WithCommand(click.Command):
    """A command whose `ctx.obj` is the list of the words after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@click.command(name="set", cls=_WithCommand)
@study_argument
@click.argument("settings", metavar="KEY=VALUE... [-- COMMAND…]", nargs=-1)
@click.option("--report-regex", metavar="RE", help="How the command prints metrics.")
@click.option("--report-file", metavar="PATH", help="Where the command writes JSON lines.")
@storage_option
@click.pass_obj
def set(  # noqa: A001  the command
    command: Sequence[str],
    /,
    *,
    name: str,
    settings: Sequence[str],
    report_regex: str | None,
    report_file: str | None,
    storage: Storage,
) -> None:
    """
    Change settings of NAME: checkpoints=URL, trainable=M:F, keep=…, limits, or a command.

    A limit that the study was created with can be raised or lowered, as 'cost_limit=usd<=80',
    max_steps=900, time_limit_s=3h, total_time_limit_s=2d or trial_time_limit_s=10m. A study that
    has stopped at a limit goes on after `studydb resume`.

    keep='last=3, best=1, every=10' says which checkpoints attempts that start later keep; see
    `studydb create --help`.

    Attempts that start later save to URL: a directory that all workers see, or inline: (the
    database). Older checkpoints stay in their store, and trials are restored from that store.

    They run the function M:F, or the command, signed with your key. Workers need no restart.
    Running attempts go on with the former code.
    """
    given = read_settings(settings)
    checkpoints, trainable = given.pop("checkpoints", None), given.pop("trainable", None)
    keep = given.pop("keep", None)
    limits = given
    code = read_code(command, trainable, report_regex=report_regex, report_file=report_file)
    if code is None and checkpoints is None and keep is None and not limits:
        raise UsageError(
            f"Nothing is to be set. Write KEY=VALUE, with {' or '.join(KEYS)} as KEY, or a command "
            "after `--`."
        )
    with opened_study(storage, name) as study:
        study.set(checkpoints=checkpoints, trainable=code, keep=keep, **limits)
        record = study.record
    for limit in limits:
        click.echo(f"Study {name!r}: {limit} is {visible(str(getattr(record, limit)))}.")
    later = f"Study {name!r}: attempts that start later"
    if checkpoints is not None:
        click.echo(f"{later} save checkpoints to {visible(record.checkpoints or '')}.")
    if keep is not None:
        click.echo(f"{later} keep checkpoints by {visible(str(record.keep))}.")
    if record.trainable is not None and code is not None:
        click.echo(f"{later} run {visible(record.trainable.name)}.")


def read_settings(settings: Sequence[str]) -> dict[str, Any]:
    """
    Read "KEY=VALUE" texts.

    Raises:
        UsageError: A text is not KEY=VALUE, names no setting, or repeats a setting.
    """
    given: dict[str, Any] = {}
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
