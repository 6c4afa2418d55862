"""`pause`, `resume`, `stop`, `enqueue`, `extend`: people control a study and its trials."""

import re
from collections.abc import Sequence
from typing import Any

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Spec, Storage, TrialWord, storage_option, study_argument
from studydb.cli.printing import print_resumption
from studydb.domain.arguments import LARGEST
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.states import Status
from studydb.domain.space.domains import Domain
from studydb.domain.space.parameters import parse_parameter, parse_parameters
from studydb.domain.text.display import counted, visible
from studydb.domain.text.names import check_tags, check_trial_name
from studydb.settings import expanded

_AFTER_FINISHED = "it was FINISHED, so no trial was running"

trials_argument = click.argument("trials", metavar="[TRIAL]...", type=TrialWord(), nargs=-1)


@click.command()
@study_argument
@trials_argument
@storage_option
def pause(*, name: str, trials: Sequence[int | str], storage: Storage) -> None:
    """
    Pause trials of NAME; without TRIAL the whole study.

    A running trial pauses at its next report, however late that is, and may save a checkpoint.
    """
    with opened_study(storage, name) as study:
        was_finished = not trials and study.status is Status.FINISHED
        study.pause(*trials)
    then = _AFTER_FINISHED if was_finished else "running trials pause at their next report"
    click.echo(f"{subject(name, trials)}: paused; {then}.")


@click.command()
@study_argument
@click.argument("words", metavar="[TRIAL]... [K=V]...", type=Spec(), nargs=-1)
@storage_option
def resume(*, name: str, words: Sequence[str], storage: Storage) -> None:
    """
    Resume paused trials of NAME; without TRIAL the whole study.

    With K=V, later attempts of these trials get other values of parameters: resume NAME 3 lr=0.01.
    Such trials must be PAUSED or PENDING.
    """
    params = [word for word in words if "=" in word]
    trials = [TrialWord().convert(word, None, None) for word in words if "=" not in word]
    changes = read_values(params)
    with opened_study(storage, name) as study:
        before = None if trials else study.status
        study.resume(*trials, **changes)
    if before in (Status.RUNNING, Status.FINISHED):
        click.echo(f"Study {name!r} was neither paused nor stopped: it is {before}.")
        return
    told = f" with {visible(' '.join(params))}" if params else ""
    click.echo(f"{subject(name, trials)}: resumed{told}.")


@click.command()
@study_argument
@trials_argument
@click.option(
    "--now", is_flag=True, help="Kill running trials without waiting for the worker's --grace."
)
@click.option(
    "--discard-checkpoints",
    "discards",
    is_flag=True,
    help="Wait until the trials have ended, and delete their checkpoints.",
)
@storage_option
def stop(
    *, name: str, trials: Sequence[int | str], now: bool, discards: bool, storage: Storage
) -> None:
    """
    End trials of NAME as CANCELLED; without TRIAL stop the whole study.

    A running trial gets the request within seconds. If the trial has not ended after the worker's
    --grace, the worker kills it. A stopped study keeps its PENDING trials and can be resumed.

    With --discard-checkpoints, you can also name trials that have ended. Pinned and corrupt
    checkpoints are kept; a clone pins the checkpoint from which it begins.
    """
    with opened_study(storage, name) as study:
        was_finished = not trials and study.status is Status.FINISHED
        study.stop(*trials, now=now, discard_checkpoints=discards)
    if discards:
        click.echo(
            f"{subject(name, trials)}: ended; all checkpoints are deleted, except pinned and "
            "corrupt ones."
        )
        return
    then = f"running trials {'are killed' if now else 'save and end, or are killed'}"
    click.echo(f"{subject(name, trials)}: stopped; {_AFTER_FINISHED if was_finished else then}.")


@click.command()
@study_argument
@click.argument("params", metavar="[K=V]...", type=Spec(), nargs=-1)
@click.option(
    "--name",
    "label",
    metavar="TRIAL",
    help="A name for the trial. Commands accept it in place of the number.",
)
@click.option("--tag", "tags", multiple=True, type=Spec(), metavar="TAG", help="A tag. Repeatable.")
@click.option(
    "--checkpoint",
    "source",
    metavar="FROM",
    help="Begin from a trial's checkpoint (N, N:STEP, STUDY/N[:STEP]), a directory or a .pkl file.",
)
@click.option(
    "--checkpoint-step",
    "step",
    type=click.IntRange(min=0),
    default=0,
    metavar="S",
    help="The last step that the directory or file contains.",
)
@click.option(
    "--resources", metavar="REQUEST", help="What this trial needs, such as 'gpus=2, licence=1'."
)
@storage_option
def enqueue(
    *,
    name: str,
    params: Sequence[str],
    label: str | None,
    tags: Sequence[str],
    source: str | None,
    step: int,
    resources: str | None,
    storage: Storage,
) -> None:
    """
    Add a trial to NAME with these parameters; missing values are drawn at random from the space.

    With --checkpoint, the trial begins from another trial's checkpoint, from a directory, or from a
    .pkl file that export-checkpoint wrote. A trial's checkpoint is kept until the new trial ends. A
    directory or file is uploaded and signed with your key. Write ./3 for a directory named 3.
    """
    given = read_values(params)
    if label is not None:
        check_trial_name(label)
    check_tags(tags)
    with opened_study(storage, name) as study:
        start = {} if source is None else {"checkpoint": read_start(source)}
        options: dict[str, Any] = {"checkpoint_step": step, "resources": resources, **start}
        number = study.enqueue(given, name=label, tags=tags, **options)
        are_drawn = bool(study.record.space.parameters) and not given
    called = "" if label is None else f", {label!r}"
    drawn = "; its parameters are drawn at random from the space" if are_drawn else ""
    click.echo(f"Study {name!r}: enqueued trial {number}{called}{drawn}.")


@click.command()
@study_argument
@click.option(
    "--trials",
    required=True,
    type=click.IntRange(min=1, max=LARGEST),
    metavar="N",
    help="How many trials to add to the budget.",
)
@storage_option
def extend(*, name: str, trials: int, storage: Storage) -> None:
    """Add trials to the budget of NAME; a finished study continues."""
    with opened_study(storage, name) as study:
        budget = study.extend(num_trials=trials)
        status, suffix = study.status, storage.command_suffix(study.storage)
    click.echo(f"Study {name!r}: {counted(budget, 'trial')} in all.")
    print_resumption(status, name, suffix)


def read_values(params: Sequence[str]) -> dict[str, Any]:
    """
    Read the parameters of one trial, given as "path=value" texts.

    Raises:
        InvalidSpec: A text lacks the "=", a value is a distribution, or `parse_parameters` refuses
            a text.
    """
    for text in params:
        if "=" not in text:
            raise InvalidSpec(
                f"{text!r} has no '='; give each parameter as PARAM=VALUE, such as lr=0.1."
            )
    for path, value in map(parse_parameter, params):
        if isinstance(value, Domain):
            raise InvalidSpec(
                f"Parameter {path!r} is the distribution {value}; give a value, or leave the "
                "parameter out, so that its value is drawn."
            )
    return parse_parameters(params)


def read_start(text: str) -> Any:
    """Read what a trial begins from: a trial's checkpoint, or else a path."""
    from studydb.study.starting import SavedByTrial

    found = _START.fullmatch(text)
    if found is None:
        return expanded(text) if text else text
    number, step = int(found["number"]), found["step"]
    return SavedByTrial(number, None if step is None else int(step), found["study"])


_START = re.compile(
    r"(?:(?P<study>(?!\.{1,2}/)[^/]+)/)?(?P<number>[0-9]{1,18})(?::(?P<step>[0-9]{1,18}))?"
)


def subject(name: str, trials: Sequence[int | str]) -> str:
    """Name the trials that a command changes; if there are none, name the study."""
    if not trials:
        return f"Study {name!r}"
    noun = "Trial" if len(trials) == 1 else "Trials"
    return f"{noun} {', '.join(map(str, trials))} of {name!r}"
