"""Whole trials: ask, ten reports, finish."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from benchmarks import options, optuna_side, ours, places, raw
from benchmarks.against import Subject, compare
from benchmarks.rounds import Contest, measure, show
from benchmarks.teams import Plan

SUBJECT = Subject(
    unit="trials/s",
    contenders=(ours.BUFFERED, ours.FLUSHED),
    build="benchmarks.ours:build",
    options=lambda url: {"url": url},
)


@click.command()
@options.turns(processes=(1, 8), rounds=7, seconds=1.0)
@options.against
@options.storage
@click.option("--without-optuna", is_flag=True, help="Measure without Optuna.")
def trial(*, storage: str, without_optuna: bool, turns: options.Turns, commit: str | None) -> None:
    """
    Whole trials per second: ask, 10 reports, finish; random search of 3 params, FIFO.

    On PostgreSQL studydb is compared with Optuna's RDBStorage, and with raw psycopg in three forms:
    several statements for each ask, report and finish; one statement for each of these; and two
    statements for a whole trial. On SQLite studydb is compared with Optuna's RDBStorage and
    JournalStorage. All contenders store the 3 params and 10 reports of each trial.
    """
    if commit is not None:
        compare(SUBJECT, commit, turns, storage=storage)
        return
    if not without_optuna:
        optuna_side.require()
    if storage == "sqlite":
        arena = _on_sqlite(without_optuna=without_optuna)
    else:
        arena = _on_postgresql(fsync=turns.fsync, without_optuna=without_optuna)
    with arena as (contest, conditions):
        outcome = measure(contest, turns, conditions)
    show(outcome, as_json=turns.as_json)


@contextmanager
def _on_postgresql(
    *, fsync: bool, without_optuna: bool
) -> Iterator[tuple[Contest, Mapping[str, Any]]]:
    with (
        places.postgresql_server(fsync=fsync) as server,
        places.databases(server, "ours", "raw", "optuna") as urls,
    ):
        for name in ("ours", "raw"):
            ours.create(places.with_tables(urls[name]))
        per_step = (raw.TRANSACTION_PER_STEP, raw.STATEMENT_PER_STEP)
        raw_names = (*per_step, raw.TWO_STATEMENTS_PER_TRIAL)
        plans: dict[tuple[str, ...], Plan] = {
            (ours.BUFFERED, ours.FLUSHED): Plan(ours.build, {"url": urls["ours"]}),
            raw_names: Plan(raw.build, {"url": urls["raw"]}),
        }
        baselines = {ours.BUFFERED: [*raw_names], ours.FLUSHED: [*per_step]}
        if not without_optuna:
            _add_optuna(plans, baselines, {optuna_side.RDB: urls["optuna"]})
        yield (
            Contest("trials/s", plans, baselines),
            {"storage": "postgresql", **places.conditions(server)},
        )


@contextmanager
def _on_sqlite(*, without_optuna: bool) -> Iterator[tuple[Contest, Mapping[str, Any]]]:
    with places.folder() as folder:
        url = f"sqlite:///{folder}/studydb.db"
        ours.create(url)
        plans: dict[tuple[str, ...], Plan] = {
            (ours.BUFFERED, ours.FLUSHED): Plan(ours.build, {"url": url})
        }
        baselines: dict[str, list[str]] = {ours.BUFFERED: [], ours.FLUSHED: []}
        if not without_optuna:
            storages = {
                optuna_side.RDB: f"sqlite:///{folder}/optuna.db",
                optuna_side.JOURNAL: str(folder / "optuna.journal"),
            }
            _add_optuna(plans, baselines, storages)
        yield Contest("trials/s", plans, baselines), {"storage": "sqlite"}


def _add_optuna(
    plans: dict[tuple[str, ...], Plan],
    baselines: Mapping[str, list[str]],
    storages: Mapping[str, str],
) -> None:
    optuna_side.create(storages)
    plans[tuple(storages)] = Plan(optuna_side.build, {"storages": storages})
    baselines[ours.BUFFERED].extend(storages)
