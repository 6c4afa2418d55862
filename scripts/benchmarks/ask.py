"""Asks that make new trials, in a flat and in a nested space."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

import click

import studydb
from benchmarks import options, ours, places, raw
from benchmarks.against import Subject, compare
from benchmarks.rounds import Contest, measure, show
from benchmarks.space import LR, METRIC, MOMENTUM, STUDY, WIDTH
from benchmarks.teams import Plan, Step
from studydb.db import connect
from studydb.domain.records import LEASE_S, Claimant
from studydb.operations import ask as operation
from studydb.operations.create import load

FLAT, NESTED, RAW = "studydb", "studydb, nested", "raw, 1 call"
NESTED_STUDY = "nested"

SUBJECT = Subject(
    unit="asks/s",
    contenders=(FLAT, NESTED),
    build="benchmarks.ask:build",
    options=lambda url: {"urls": {"ours": url, "raw": url}},
)


@click.command()
@options.turns(processes=(1, 8), rounds=7, seconds=1.0)
@options.against
def ask(*, turns: options.Turns, commit: str | None) -> None:
    """
    Asks per second, on PostgreSQL, in a flat space and in a nested space of the same 3 params.

    An ask in the flat space is compared with one raw statement that writes the same rows. An ask in
    the nested space is compared with an ask in the flat space.
    """
    if commit is not None:
        compare(SUBJECT, commit, turns)
        return
    with (
        places.postgresql_server(fsync=turns.fsync) as server,
        places.databases(server, "ours", "raw") as urls,
    ):
        for url in urls.values():
            ours.create(places.with_tables(url))
        contest = Contest(
            unit="asks/s",
            plans={(FLAT, NESTED, RAW): Plan(build, {"urls": urls})},
            ours={FLAT: [RAW], NESTED: [FLAT]},
        )
        outcome = measure(contest, turns, places.conditions(server))
    show(outcome, as_json=turns.as_json)


def build(stack: ExitStack, *, index: int, urls: Mapping[str, str]) -> Mapping[str, Step]:
    """Return the steps: an ask in the flat space, an ask in the nested space, a raw statement."""
    _create_nested(urls["ours"])
    database = stack.enter_context(closing(connect(urls["ours"], connections=1)))
    connection = stack.enter_context(raw.connect(urls["raw"]))
    common = {"study": 1, "worker": index + 1, "shard": index % raw.SHARDS}

    def ask_ours(study: Any) -> int:
        claimed = operation.ask(database, study, Claimant(index + 1, uuid4().hex, LEASE_S))
        assert claimed is not None
        return 1

    def ask_raw() -> int:
        raw.start(connection, common)
        return 1

    return {
        FLAT: partial(ask_ours, load(database, STUDY)),
        NESTED: partial(ask_ours, load(database, NESTED_STUDY)),
        RAW: ask_raw,
    }


def _create_nested(url: str) -> None:
    space = {
        "optimizer": {
            "lr": studydb.loguniform(*LR),
            "more": {"momentum": studydb.uniform(*MOMENTUM)},
        },
        "model": {"width": studydb.randint(*WIDTH)},
    }
    study = studydb.create_study(
        NESTED_STUDY, None, space=space, metric=METRIC, mode="min", storage=url, load_if_exists=True
    )
    study.close()
