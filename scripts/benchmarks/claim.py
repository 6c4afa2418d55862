"""Claims of PENDING trials."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import click

from benchmarks import options, ours, places, raw, raw_sql, waiting
from benchmarks.against import Subject, compare
from benchmarks.rounds import Contest, measure, show
from benchmarks.space import STUDY
from benchmarks.teams import Plan, Step
from studydb.db import connect
from studydb.domain.records import LEASE_S, Claimant
from studydb.operations import claim as operation
from studydb.operations.create import load

OURS, RAW = "studydb", "raw, 1 call"
DATABASES = {OURS: "ours", RAW: "raw"}

WAITING_PER_S = 10_000
"""PENDING trials made for each second of a slice: more than clients can claim in a second."""


@click.command()
@options.turns(processes=(1, 8, 32), rounds=5, seconds=1.0)
@options.against
def claim(*, turns: options.Turns, commit: str | None) -> None:
    """
    Claims of PENDING trials per second, on PostgreSQL.

    The other contender is one raw statement. It finds a trial with SKIP LOCKED, and writes the
    trial, its attempt and the counter.
    """
    n = int(WAITING_PER_S * max(turns.seconds, 0.5))
    if commit is not None:
        compare(_subject(n), commit, turns)
        return
    with (
        places.postgresql_server(fsync=turns.fsync) as server,
        places.databases(server, *DATABASES.values()) as urls,
    ):
        for url in urls.values():
            ours.create(places.with_tables(url))
        contest = Contest(
            unit="claims/s",
            plans={(OURS, RAW): Plan(build, {"urls": urls})},
            ours={OURS: [RAW]},
            before=lambda name: waiting.fill(urls[DATABASES[name]], n),
        )
        outcome = measure(contest, turns, places.conditions(server))
    show(outcome, as_json=turns.as_json)


def _subject(n_waiting: int) -> Subject:
    return Subject(
        unit="claims/s",
        contenders=(OURS,),
        build="benchmarks.claim:build",
        options=lambda url: {"urls": dict.fromkeys(DATABASES.values(), url)},
        fill="benchmarks.waiting:fill",
        fill_options={"n": n_waiting},
    )


def build(stack: ExitStack, *, index: int, urls: Mapping[str, str]) -> Mapping[str, Step]:
    """Return the steps: a claim through studydb's operation, and a claim in one raw statement."""
    database = stack.enter_context(closing(connect(urls["ours"], connections=1)))
    study = load(database, STUDY)
    connection = stack.enter_context(raw.connect(urls["raw"]))
    common = {"study": 1, "worker": index + 1, "shard": index % raw.SHARDS}

    def claim_ours() -> int:
        claimant = Claimant(index + 1, uuid4().hex, LEASE_S)
        return _one(operation.claim(database, study, claimant))

    def claim_raw() -> int:
        params: dict[str, Any] = {**common, "token": uuid4().hex}
        return _one(connection.execute(raw_sql.CLAIM, params, prepare=True).fetchone())

    return {OURS: claim_ours, RAW: claim_raw}


def _one(claimed: object) -> int:
    if claimed is None:
        raise RuntimeError("No PENDING trial is left: the slice is too long, or trials too few.")
    return 1
