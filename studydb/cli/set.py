"""`set`: change settings of a study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from studydb.cli.create import read_code, refuse_empty_command
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, TrialWord, storage_option, study_argument
from studydb.domain.errors import UsageError
from studydb.domain.limits import LIMITS
from studydb.domain.resources import read_resources
from studydb.domain.text.display import visible
from studydb.domain.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from studydb.domain.records import Study

KEYS = ("checkpoints", "trainable", "keep", "resources", *LIMITS)


class _WithCommand(click.Command):
    """The command `set`: `ctx.obj` is the list of the words after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_command(ctx, args)
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@click.command(name="set", cls=_WithCommand)
@study_argument
@click.argument("settings", metavar="KEY=VALUE... [-- COMMAND…]", nargs=-1)
@click.option(
    "--report-regex", metavar="RE", help="A pattern of the metrics that the command prints."
)
@click.option("--report-file", metavar="PATH", help="Where the command writes JSON lines.")
@click.option(
    "--trial",
    "trials",
    type=TrialWord(),
    multiple=True,
    metavar="N",
    help="A trial, by its number or name, to which resources=… applies. Repeatable.",
)
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
    trials: Sequence[int | str],
    storage: Storage,
) -> None:
    """
    Change settings of NAME: checkpoints=URL, trainable=M:F, keep, resources, limits, or a command.

    A limit that the study was created with can be raised or lowered: 'cost_limit=usd<=80',
    max_steps=900, time_limit_s=3h, total_time_limit_s=2d or trial_time_limit_s=10m. A study that
    has stopped at a limit goes on after `studydb resume`.

    keep='last=3, best=1, every=10' says which checkpoints are kept by attempts that start later; a
    quota in it applies to running attempts, too. See `studydb create --help`.

    resources='gpus=1, memory_gb=8' says what each trial without its own request needs. With --trial
    N, it says what trial N needs; trial N must be PENDING or PAUSED.

    checkpoints=URL says where checkpoints are saved by attempts that start later: in a directory
    that all workers see, in a remote store, or, with checkpoints=inline:, in the database. Older
    checkpoints stay in their store, and trials are restored from that store. A running attempt goes
    on in its store, unless this is a directory that was moved.

    trainable=M:F or a command says what is run by attempts that start later: the function or class
    F of the module M, or the command, signed with your key. Running attempts go on with the former
    code. Workers need no restart.
    """
    given = read_settings(settings)
    checkpoints, trainable = given.pop("checkpoints", None), given.pop("trainable", None)
    keep, resources = given.pop("keep", None), given.pop("resources", None)
    limits = given
    code = read_code(command, trainable, report_regex=report_regex, report_file=report_file)
    if trials and resources is None:
        raise UsageError("--trial is given without resources=…; give both, or leave --trial out.")
    if code is checkpoints is keep is resources is None and not limits:
        raise UsageError(
            f"No setting is given. Write KEY=VALUE, with {' or '.join(KEYS)} as KEY, or a command "
            "after `--`."
        )
    with opened_study(storage, name) as study:
        if code is checkpoints is keep is None and not limits:
            study.set_resources(resources, *trials)
        elif trials:
            raise UsageError(
                "With --trial only resources=… can be set; change other settings separately."
            )
        else:
            study.set(
                checkpoints=checkpoints, trainable=code, keep=keep, resources=resources, **limits
            )
        record = study.record
    for limit in limits:
        click.echo(f"Study {name!r}: {limit} is {visible(str(getattr(record, limit)))}.")
    _print_later(record, name, checkpoints=checkpoints, keep=keep, code=code)
    if resources is not None:
        shown = ", ".join(visible(str(one)) for one in trials)
        which = f"trial {shown}" if trials else "each trial without its own request"
        click.echo(f"Study {name!r}: {which} needs {read_resources('resources', resources)}.")


def _print_later(record: "Study", name: str, *, checkpoints: Any, keep: Any, code: Any) -> None:
    """Print what is new for attempts that start later; an argument is None if it was not given."""
    later = f"Study {name!r}: attempts that start later"
    if checkpoints is not None:
        click.echo(f"{later} save checkpoints to {visible(record.checkpoints or '')}.")
    if keep is not None:
        click.echo(f"{later} keep checkpoints as keep={visible(str(record.keep))!r} says.")
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
            if key == "num_trials":
                near = " `studydb extend NAME --trials N` raises num_trials."
            raise UsageError(f"{key!r} cannot be set. Settings: {', '.join(KEYS)}.{near}")
        if not sign or not value:
            raise UsageError(f"{key!r} has no value; write {key}=VALUE.")
        if key in given:
            raise UsageError(f"{key!r} is given twice; give it once.")
        given[key] = value
    return given
