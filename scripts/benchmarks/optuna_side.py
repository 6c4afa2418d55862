"""Optuna as a contender: trials (ask, three suggestions, ten reports, tell), and data frames."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import click
from harness import postgres

from benchmarks.space import LR, MOMENTUM, REPORTS, STUDY, WIDTH, loss
from benchmarks.teams import Step

RDB, JOURNAL = "Optuna RDBStorage", "Optuna JournalStorage"
FRAME = "trials_dataframe"

_COPIES = (
    """INSERT INTO trials (number, study_id, state, datetime_start, datetime_complete)
    SELECT n, study_id, state, datetime_start, datetime_complete
    FROM trials, generate_series(1, %(most)s) AS n WHERE number = 0""",
    *(
        f"""INSERT INTO {table} (trial_id, {columns})
        SELECT copy.trial_id, {columns} FROM trials AS copy, {table} AS original
        WHERE copy.number > 0 AND original.trial_id = %(original)s"""
        for table, columns in (
            ("trial_params", "param_name, param_value, distribution_json"),
            ("trial_values", "objective, value, value_type"),
            ("trial_intermediate_values", "step, intermediate_value, intermediate_value_type"),
        )
    ),
)


def require() -> None:
    """
    Check that Optuna is installed.

    Raises:
        click.UsageError: Optuna is not installed; the message says how to install it.
    """
    try:
        import optuna  # noqa: F401, PLC0415  an extra
    except ModuleNotFoundError:
        raise click.UsageError(
            "Optuna is not installed. Measure without Optuna, or install it: "
            ".venv/bin/python -m pip install --constraint constraints.txt --editable '.[bench]'"
        ) from None


def create(storages: Mapping[str, str]) -> None:
    import optuna  # noqa: PLC0415  an extra

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for kind, place in storages.items():
        optuna.create_study(study_name=STUDY, storage=_open(kind, place), direction="minimize")


def build(_stack: ExitStack, *, index: int, storages: Mapping[str, str]) -> Mapping[str, Step]:
    """
    Return a step for each storage: one trial in that storage.

    Args:
        storages: For each contender, a database's URL or a journal's path.
    """
    del index
    import optuna  # noqa: PLC0415  an extra

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return {kind: _trials(kind, place) for kind, place in storages.items()}


def _trials(kind: str, place: str) -> Step:
    import optuna  # noqa: PLC0415  an extra

    study = optuna.load_study(
        study_name=STUDY,
        storage=_open(kind, place),
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.NopPruner(),
    )

    def run_trial() -> int:
        trial = study.ask()
        trial.suggest_float("lr", *LR, log=True)
        trial.suggest_int("width", *WIDTH)
        momentum = trial.suggest_float("momentum", *MOMENTUM)
        for step in range(1, REPORTS + 1):
            trial.report(loss(momentum, step), step)
        study.tell(trial, loss(momentum, REPORTS))
        return 1

    return run_trial


def fill(url: str, *, trials: int) -> None:
    """Create a study of `trials` trials: one completed trial, and copies of it."""
    create({RDB: url})
    _trials(RDB, url)()
    with postgres.connect(url) as connection:
        (original,) = connection.execute("SELECT trial_id FROM trials").fetchone() or (0,)
        for copies in _COPIES:
            connection.execute(copies, {"most": trials - 1, "original": original})
        connection.execute("VACUUM (ANALYZE)")


def frame(url: str, name: str) -> float:
    """Make a data frame with Optuna; return how many seconds that took."""
    import optuna  # noqa: PLC0415  an extra

    study = optuna.load_study(study_name=STUDY, storage=_open(RDB, url))
    began_s = time.perf_counter()
    made = getattr(study, name)()
    took_s = time.perf_counter() - began_s
    assert len(made)
    return took_s


def _open(kind: str, place: str) -> Any:
    import optuna  # noqa: PLC0415  an extra
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    if kind == JOURNAL:
        return optuna.storages.JournalStorage(JournalFileBackend(place))
    return optuna.storages.RDBStorage(place.replace("postgresql://", "postgresql+psycopg://"))
