"""`create`: create a study."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from studydb import schedulers
from studydb.analysis.definition import space_lines
from studydb.cli.opening import created_study
from studydb.cli.options import Spec, Storage, storage_option, study_argument
from studydb.cli.printing import print_next
from studydb.domain.errors import InvalidSpec, UsageError
from studydb.domain.life.ending import LOSSES_AT_STEP, MAX_LOSSES
from studydb.domain.scheduling import Scheduler
from studydb.domain.space.parameters import parse_parameters
from studydb.domain.space.search_space import Space
from studydb.domain.space.space_file import read_space_file
from studydb.domain.specs.grammar import parse_call
from studydb.domain.text.display import counted, visible
from studydb.domain.user_code import IS_PATH
from studydb.settings import KEY_FILE, SIGNING_KEY, key_file_path

if TYPE_CHECKING:
    from studydb.study import Study
    from studydb.trainables import Command


class _WithCommand(click.Command):
    """The command `create`; the words after `--`, at least one, are the user's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_empty_command(ctx, args)
        n_after = len(args) - args.index("--") - 1 if "--" in args else 0
        rest = super().parse_args(ctx, args)
        command: tuple[str, ...] = ctx.params.get("command") or ()
        if ctx.resilient_parsing:  # the shell completes a command line
            return rest
        if len(command) < n_after:
            raise click.UsageError("Missing argument 'NAME' before `--`.", ctx)
        if len(command) > n_after:
            raise click.UsageError(
                f"{command[0]!r} is an unexpected argument. If it is the value of an option, write "
                "the option before it, such as --param; write the program that trains a trial "
                "after `--`.",
                ctx,
            )
        return rest


def refuse_empty_command(ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse a command line whose first `--` is its last word."""
    if "--" in args and args.index("--") == len(args) - 1:
        raise click.UsageError(
            "The command after `--` is empty. Write the program that trains a trial, or leave "
            "`--` out.",
            ctx,
        )


@click.command(cls=_WithCommand)
@study_argument
@click.argument("command", nargs=-1, metavar="[-- COMMAND…]")
@click.option(
    "--trainable",
    metavar="M:F",
    help="The function to run, as module:function, or a name that a package offers.",
)
@click.option("--from", "sweep", metavar="FILE", help="Read the study from a W&B sweep file.")
@click.option("--metric", metavar="M", help="The metric that ranks trials.")
@click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    help="min if lower values of the metric are better, max if higher.",
)
@click.option(
    "--param",
    multiple=True,
    type=Spec(),
    metavar="SPEC",
    help="A parameter, such as 'lr=loguniform(1e-4,1)', or a constant: epochs=27. Repeatable.",
)
@click.option("--space", metavar="FILE", help="More parameters, from a JSON file.")
@click.option(
    "--num-trials", type=int, metavar="N", help="The most trials to make.  [default: no limit]"
)
@click.option(
    "--max-concurrent", type=int, metavar="N", help="The most trials at a time, over all workers."
)
@click.option(
    "--scheduler",
    metavar="SPEC",
    help="The scheduler, such as 'ASHA(max_t=27)', or your own: 'my_rules:Heats(max_t=9)'.  "
    "[default: FIFO]",
)
@click.option(
    "--searcher",
    metavar="SPEC",
    help="The searcher, such as 'RandomSearch(seed=0)' or GridSearch.  [default: random]",
)
@click.option(
    "--stop",
    multiple=True,
    type=Spec(),
    metavar="RULE",
    help="A rule that stops a trial, such as 'loss>=3' or 'training_iteration>=27'. Repeatable.",
)
@click.option(
    "--max-failures",
    type=int,
    default=0,
    metavar="N",
    help="How many exceptions a trial survives; -1 for no limit.",
)
@click.option(
    "--retry",
    metavar="RETRY",
    help="Which exceptions are retried, and which of these count as failures; for example "
    "'Retry(never=[ValueError])'.",
)
@click.option(
    "--max-losses",
    type=int,
    metavar="N",
    help="How many deaths without an exception a trial survives between two checkpoints.  "
    f"[default: {MAX_LOSSES}, but {LOSSES_AT_STEP} in a row at one step end the trial]",
)
@click.option(
    "--guard/--no-guard",
    default=True,
    help="Pause the study if 5 trials fail alike (the same exception at the same line) before any "
    "trial has reported.",
)
@click.option("--fail-fast", is_flag=True, help="Pause the study at the first failure of a trial.")
@click.option(
    "--cost-limit",
    metavar="METRIC<=MOST",
    help="Stop the study once the sum of a metric reaches MOST, for example 'usd<=50'.",
)
@click.option(
    "--max-steps",
    type=int,
    metavar="N",
    help="Stop the study once all its trials together have reported N times.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="TIME",
    help="Stop the study once TIME (such as 2h) has passed since its first worker started.",
)
@click.option(
    "--total-time-limit",
    "total_time_limit_s",
    metavar="TIME",
    help="Stop the study once its trials have run for TIME (such as 2d) in all.",
)
@click.option(
    "--trial-time-limit",
    "trial_time_limit_s",
    metavar="TIME",
    help="End a trial once it has run for TIME (such as 10m), over all its attempts.",
)
@click.option("--checkpoints", metavar="URL", help="The store of checkpoints.")
@click.option(
    "--keep",
    default="last=1",
    metavar="KEEP",
    help="Which checkpoints of a trial are kept, besides the newest two: 'last=3, best=1, "
    "every=10' keeps the newest 3, the one with the best value, and those of each 10th step.",
)
@click.option(
    "--resources",
    metavar="REQUEST",
    help="What each trial needs, such as 'gpus=1, memory_gb=8, licence=1', or a function of the "
    "config that returns such a request, such as sizes:needs.  [default: what the trainable says, "
    "else only a slot]",
)
@click.option(
    "--require",
    multiple=True,
    type=Spec(),
    metavar="TAG",
    help="A tag that workers must have, such as a100. Repeatable.",
)
@click.option(
    "--report-regex",
    metavar="RE",
    help="A pattern of the metrics that the command prints, such as 'loss=(?P<loss>\\S+)'.",
)
@click.option(
    "--report-file",
    metavar="PATH",
    help="Where the command writes JSON lines, for example 'out/{trial}.jsonl'.",
)
@click.option("--if-not-exists", is_flag=True, help="Continue an existing study of this name.")
@storage_option
def create(
    *,
    name: str,
    command: Sequence[str],
    trainable: str | None,
    report_regex: str | None,
    report_file: str | None,
    sweep: str | None,
    metric: str | None,
    mode: str | None,
    param: Sequence[str],
    space: str | None,
    num_trials: int | None,
    scheduler: str | None,
    searcher: str | None,
    if_not_exists: bool,
    storage: Storage,
    **settings: Any,
) -> None:
    """
    Create the study NAME; an SQLite file is made when missing.

    The trials run a function (--trainable) or a program. The words after `--` are the program's
    command line; in it, {lr} stands for the parameter lr, {args} for all parameters as --lr 0.1,
    and {config} for a JSON file. Without a function or a program, your own program runs the trials,
    through study.ask().
    """
    from studydb import searchers

    defined: dict[str, Any] = {"trainable": None}
    if sweep is not None:
        from studydb.study.sweep_file import read_sweep

        defined |= read_sweep(sweep)
    code = read_code(
        command,
        trainable,
        of_sweep=defined["trainable"],
        report_regex=report_regex,
        report_file=report_file,
    )
    given = {
        "trainable": code,
        "metric": metric,
        "mode": mode,
        "num_trials": num_trials,
        "scheduler": None if scheduler is None else _read_scheduler(scheduler),
        "searcher": None if searcher is None else searchers.from_call(parse_call(searcher)),
    }
    leaves = dict(read_space(param, space).leaves)
    if sweep is not None:
        leaves = {**defined.pop("space").leaves, **leaves}
    defined |= {key: value for key, value in given.items() if value is not None}
    _require(defined, "metric", "mode")
    with created_study(
        storage,
        name,
        space=Space(leaves),
        load_if_exists=if_not_exists,
        **defined,
        **settings,
    ) as study:
        _print_created(study, storage)


def _read_scheduler(text: str) -> Scheduler:
    if IS_PATH.fullmatch(text):
        return schedulers.UserScheduler.from_text(text)
    return schedulers.from_call(parse_call(text))


def _require(defined: Mapping[str, Any], *names: str) -> None:
    """Refuse a study that lacks one of these arguments; options or a sweep file can give them."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and option.name not in defined:
            raise click.MissingParameter(ctx=context, param=option)


def read_code(
    command: Sequence[str],
    trainable: str | None,
    *,
    of_sweep: "Command | None" = None,
    report_regex: str | None,
    report_file: str | None,
) -> "Command | str | None":
    """
    Read what the trials run: the command after `--` or the trainable, else a sweep's program.

    Returns:
        None if none of these is given.

    Raises:
        UsageError: A command and --trainable are both given, or an option of commands is given
            without a command.
    """
    if command:
        if trainable is not None:
            raise UsageError(
                f"The trainable {trainable} and the command {shlex.join(command)} are both given; "
                "a study runs one of them."
            )
        from studydb.trainables import Command

        return Command(tuple(command), report_regex, report_file)
    if of_sweep is not None and trainable is None:
        return replace(of_sweep, report_regex=report_regex, report_file=report_file)
    for option, given in (("--report-regex", report_regex), ("--report-file", report_file)):
        if given is not None:
            raise UsageError(f"{option} is for commands; give the command after `--`.")
    return trainable


def read_space(params: Sequence[str], file: str | None) -> Space:
    """
    Read the parameters of --param and of the file of --space.

    Raises:
        InvalidSpec: A parameter or the file cannot be read, a name is given twice, or a name lies
            below a name that has a value.
    """
    leaves = {} if file is None else dict(read_space_file(Path(file)).leaves)
    for path, leaf in Space.read(parse_parameters(params)).leaves.items():
        for other in leaves:
            if f"{other}/".startswith(f"{path}/") or f"{path}/".startswith(f"{other}/"):
                raise InvalidSpec(
                    f"Parameter {path!r} of --param and {other!r} of {file!r} exclude each other; "
                    "remove one of them."
                )
        leaves[path] = leaf
    return Space(leaves)


def _print_created(study: "Study", storage: Storage) -> None:
    record, suffix = study.record, storage.command_suffix(study.storage)
    budget = (
        "any number of trials" if record.num_trials is None else counted(record.num_trials, "trial")
    )
    click.echo(f"Study {study.name!r} in {study.storage}: {record.objective}, {budget}.")
    for line in space_lines(record.space):
        click.echo(f"  {visible(line)}")
    if record.trainable is None:
        print_next(
            f"study = studydb.load_study({study.name!r}, storage={study.storage!r})    # Python",
            "while trial := study.ask(): ...    # in as many processes as you like",
        )
        return
    name = shlex.quote(study.name)
    print_next(f"studydb worker --study {name}{suffix}", f"studydb status {name}{suffix}")
    if study.database.features.several_hosts:
        note = "    # *** is the password" if "***" in study.storage else ""
        click.echo(
            "\nOn another machine, with your code and a copy of the key:\n"
            f"  export STUDYDB_STORAGE={shlex.quote(study.storage)}{note}\n"
            f"  {_key_variable()} studydb worker --study {name}"
        )
    else:
        click.echo("\nAn SQLite file is for one machine; for several use --storage postgresql://…")


def _key_variable() -> str:
    if os.environ.get(SIGNING_KEY):
        return f"{SIGNING_KEY}=…"
    return f"{KEY_FILE}={shlex.quote(str(key_file_path()))}"
