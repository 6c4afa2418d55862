"""Claims with a burden that slows them down: an old snapshot, or trials that back off."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click
from harness import postgres

from benchmarks import options, ours, places, waiting
from benchmarks.client import Client
from benchmarks.timing import WARM_UP_CALLS, Operation, Timings, show, take_turns

FREE, SNAPSHOT, BACKED_OFF = "free", "an old snapshot", "trials that back off"


@click.command()
@click.option(
    "--claims",
    type=click.IntRange(10),
    default=20_000,
    help="Claims in each database; the snapshot is opened before the first claim.",
)
@click.option(
    "--backed-off",
    type=click.IntRange(1),
    default=20_000,
    help="Trials that back off: they cannot be claimed during the run.",
)
@options.number_of_rounds(20, "Number of slices into which the claims are divided.")
@options.fsync
@options.as_json
def burden(*, claims: int, backed_off: int, rounds: int, fsync: bool, as_json: bool) -> None:
    """
    Milliseconds per claim with and without a burden, on PostgreSQL.

    While a transaction with an old snapshot is open, PostgreSQL keeps the dead row versions and
    index entries of earlier claims. Trials that back off stand at the head of the queue. The first
    and the last quarter of the claims are shown separately, because claims become slower
    while the snapshot stays open.
    """
    if claims < rounds:
        raise click.UsageError(
            f"{claims} claims cannot be divided into {rounds} rounds; raise --claims or lower "
            "--rounds."
        )
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=fsync))
        urls = stack.enter_context(places.databases(server, "free", "snapshot", "backoff"))
        by_place = dict(zip((FREE, SNAPSHOT, BACKED_OFF), urls.values(), strict=True))
        operations = {}
        for place, url in by_place.items():
            ours.create(places.with_tables(url))
            if place == BACKED_OFF:
                waiting.fill(url, backed_off, ready=False)
            waiting.fill(url, claims + WARM_UP_CALLS)
            client = Client(url)
            stack.callback(client.close)
            operations[place] = {"claim": Operation(client.claim)}
        stack.enter_context(_old_snapshot(by_place[SNAPSHOT]))
        slices = take_turns(operations, rounds=rounds, calls=claims // rounds)["claim"]
        timings = Timings(
            {
                name: {place: means[part] for place, means in slices.items()}
                for name, part in _parts(rounds).items()
            },
            baseline=FREE,
            conditions={"claims": claims, "backed off": backed_off, **places.conditions(server)},
        )
    show(timings, as_json=as_json)


@contextmanager
def _old_snapshot(url: str) -> Iterator[None]:
    """Keep a snapshot of the database open until the block ends."""
    with postgres.connect(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM trial")
        yield


def _parts(rounds: int) -> dict[str, slice]:
    quarter = max(1, rounds // 4)
    return {
        "all claims": slice(None),
        "first quarter": slice(quarter),
        "last quarter": slice(-quarter, None),
    }
