"""`pause`, `resume`, `stop`, `enqueue`, `extend`: people control a study and its trials."""

from collections.abc import Sequence
from typing import Any

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Number, Spec, Storage, storage_option, study_argument
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.domains import Domain
from studydb.domain.space.parameters import parse_parameter, parse_parameters
from studydb.domain.text.display import counted

numbers_argument = click.argument("numbers", metavar="[NUMBER]...", type=Number(), nargs=-1)


@click.command()
@study_argument
@numbers_argument
@storage_option
def pause(*, name: str, numbers: Sequence[int], storage: Storage) -> None:
    """
    Pause trials of NAME; without numbers the whole study.

    A running trial pauses at its next report, however late that is, and may save a checkpoint.
    """
    with opened_study(storage, name) as study:
        study.pause(*numbers)
    click.echo(f"{_subject(name, numbers)}: paused; running trials pause at their next report.")


@click.command()
@study_argument
@numbers_argument
@storage_option
def resume(*, name: str, numbers: Sequence[int], storage: Storage) -> None:
    """Resume paused trials of NAME; without numbers the whole study."""
    with opened_study(storage, name) as study:
        study.resume(*numbers)
    click.echo(f"{_subject(name, numbers)}: resumed.")


@click.command()
@study_argument
@numbers_argument
@storage_option
def stop(*, name: str, numbers: Sequence[int], storage: Storage) -> None:
    """
    End trials of NAME as CANCELLED; without numbers stop the whole study.

    A running trial gets the request within seconds. If the trial has not ended after the worker's
    --grace, the worker kills it. A stopped study keeps its PENDING trials and can be resumed.
    """
    with opened_study(storage, name) as study:
        study.stop(*numbers)
    click.echo(f"{_subject(name, numbers)}: stopped; running trials save and end, or are killed.")


@click.command()
@study_argument
@click.argument("params", metavar="K=V...", type=Spec(), nargs=-1)
@storage_option
def enqueue(*, name: str, params: Sequence[str], storage: Storage) -> None:
    """Add a trial to NAME with these parameters; missing values are drawn from the space."""
    given = read_values(params)
    with opened_study(storage, name) as study:
        number = study.enqueue(given)
    click.echo(f"Study {name!r}: enqueued trial {number}.")


@click.command()
@study_argument
@click.option(
    "--trials", required=True, type=int, metavar="N", help="How many trials to add to the budget."
)
@storage_option
def extend(*, name: str, trials: int, storage: Storage) -> None:
    """Add trials to the budget of NAME; a finished study continues."""
    with opened_study(storage, name) as study:
        budget = study.extend(num_trials=trials)
    click.echo(f"Study {name!r}: {counted(budget, 'trial')} in all.")


def read_values(params: Sequence[str]) -> dict[str, Any]:
    """
    Read the parameters of one trial, given as "path=value" texts.

    Raises:
        InvalidSpec: A value is a distribution, or `parse_parameters` refuses a text.
    """
    for path, value in map(parse_parameter, params):
        if isinstance(value, Domain):
            raise InvalidSpec(
                f"Parameter {path!r} is the distribution {value}; give a value, or leave it out "
                "to have one drawn."
            )
    return parse_parameters(params)


def _subject(name: str, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"Study {name!r}"
    noun = "Trial" if len(numbers) == 1 else "Trials"
    return f"{noun} {', '.join(map(str, numbers))} of {name!r}"
