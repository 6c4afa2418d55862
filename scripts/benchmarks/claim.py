"""Claims of PENDING trials."""

from collections.abc import Mapping, Sequence
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
from studydb.domain.resources import Capacity
from studydb.lease.fitting import Fitting
from studydb.operations import claim as operation
from studydb.operations.create import load

OURS, RAW = "studydb", "raw, 1 call"
DATABASES = {OURS: "ours", RAW: "raw"}

WAITING_PER_S = 10_000
"""PENDING trials for each second of a slice: more than the clients can claim in a second."""


@click.command()
@options.turns(processes=(1, 8, 32), rounds=5, seconds=1.0)
@options.against
@click.option(
    "--shapes",
    type=click.IntRange(1, 64),
    multiple=True,
    metavar="N",
    help="Also measure a study with N different requests for resources among its trials. "
    "Repeatable.",
)
@click.option(
    "--waiting",
    "n_waiting",
    type=click.IntRange(1),
    metavar="N",
    help="PENDING trials before each slice; by default 10,000 per second of a slice.",
)
def claim(
    *, turns: options.Turns, commit: str | None, shapes: Sequence[int], n_waiting: int | None
) -> None:
    """
    Claims of PENDING trials per second, on PostgreSQL.

    studydb is compared with one raw statement, which finds a trial with SKIP LOCKED, and writes the
    trial, its attempt and the counter. With --shapes, studies whose trials ask for resources are
    compared with the study whose trials ask for none. Each study with requests should reach at
    least 0.83 of the claims per second of the study without requests.
    """
    n = n_waiting or int(WAITING_PER_S * max(turns.seconds, 0.5))
    if commit is not None:
        compare(_subject(n), commit, turns)
        return
    shaped = {f"{OURS}, {number} requests": number for number in shapes}
    place = DATABASES | {name: f"shapes_{number}" for name, number in shaped.items()}
    with (
        places.postgresql_server(fsync=turns.fsync) as server,
        places.databases(server, *place.values()) as urls,
    ):
        for url in urls.values():
            ours.create(places.with_tables(url))
        of_shapes = {
            (name,): Plan(build_shaped, {"url": urls[place[name]], "name": name}) for name in shaped
        }
        contest = Contest(
            unit="claims/s",
            plans={(OURS, RAW): Plan(build, {"urls": urls})} | of_shapes,
            ours={OURS: [RAW]} | {name: [OURS] for name in shaped},
            before=lambda name: waiting.fill(urls[place[name]], n, shapes=shaped.get(name, 0)),
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


def build_shaped(stack: ExitStack, *, index: int, url: str, name: str) -> Mapping[str, Step]:
    """Return the step: a claim by a worker that has the resources for every trial."""
    database = stack.enter_context(closing(connect(url, connections=1)))
    study = load(database, STUDY)
    fitting = Fitting(database, study, worker_id=index + 1, capacity=Capacity())

    def claim_fitting() -> int:
        fitting.learn()
        claimant = Claimant(index + 1, uuid4().hex, LEASE_S)
        return _one(fitting.claim(claimant, again=True))

    return {name: claim_fitting}


def _one(claimed: object) -> int:
    if claimed is None:
        raise RuntimeError(
            "No PENDING trial is left for the slice: give fewer --seconds or more --waiting."
        )
    return 1
