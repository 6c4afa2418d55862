"""`hello`: create a small study or continue it, and run it."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from studydb.cli.formatting import table_cell
from studydb.cli.opening import created_study
from studydb.cli.options import Storage, storage_option
from studydb.cli.printing import print_next
from studydb.domain.errors import StudyExists
from studydb.domain.life.states import Mode, State, Status
from studydb.domain.space.search_space import uniform
from studydb.domain.text.display import best_text

if TYPE_CHECKING:
    from studydb.study import Study

NAME, TRIALS, WORKERS = "hello", 20, 2

_SPEC: dict[str, Any] = {
    "trainable": "studydb.examples.quadratic:train",
    "metric": "loss",
    "mode": "min",
    "space": {"x": uniform(-10, 10), "rate": uniform(0, 1)},
}


@click.command()
@storage_option
def hello(*, storage: Storage) -> None:
    """
    Run a small study here with two workers, to see that everything works.

    A further run continues the study; if the study has finished, the run adds 20 trials.
    """
    with suppress(StudyExists), created_study(storage, NAME, num_trials=TRIALS, **_SPEC):
        # The next call does not pass num_trials=TRIALS: an extended study has a larger number of
        # trials, and the difference would cause a warning.
        pass
    with created_study(storage, NAME, load_if_exists=True, **_SPEC) as study:
        _extend_or_resume(study)
        click.echo(f"Study {NAME!r} in {study.storage}: {WORKERS} workers search for a minimum.")
        study.run(workers=WORKERS)
        _print_best(study, storage)


def _extend_or_resume(study: "Study") -> None:
    status = study.status
    if status is Status.FINISHED:
        study.extend(num_trials=TRIALS)
    elif status is not Status.RUNNING:
        study.resume()


def _print_best(study: "Study", storage: Storage) -> None:
    best, counts = study.best_trial, study.counts
    by_state = ", ".join(
        f"{count} {state}" for state in State if (count := getattr(counts, state.lower()))
    )
    click.echo(
        f"Best loss (min): {best_text(best.best_value, Mode.MIN)}, trial {best.number}: "
        f"{table_cell(best.params, brief=True)}\n"
        f"Trials: {by_state}"
    )
    suffix = storage.command_suffix(study.storage)
    print_next(
        f"studydb trials {NAME} --sort best --limit 5{suffix}",
        f"studydb show {NAME} {best.number}{suffix}",
        f"studydb views {NAME}{suffix}",
        "studydb create --help",
    )
