"""Growth of the cost of each operation with the size of the study."""

from contextlib import ExitStack

import click

from benchmarks import loading, options, places, waiting
from benchmarks.client import Client
from benchmarks.timing import WARM_UP_CALLS, Timings, show, take_turns


@click.command()
@click.option(
    "--trials",
    type=click.IntRange(10),
    nargs=2,
    default=(10_000, 1_000_000),
    help="Trials of the small study and of the large one; each trial has ten results.",
)
@options.number_of_rounds(5, "Number of slices per operation.")
@click.option("--calls", type=click.IntRange(1, 10_000), default=200, help="Calls in a slice.")
@options.fsync
@options.as_json
def growth(*, trials: tuple[int, int], rounds: int, calls: int, fsync: bool, as_json: bool) -> None:
    """
    Milliseconds per call in a small study and in a large one, on PostgreSQL.

    The operations are claim, ask, a report without a decision, a report judged at a rung that all
    loaded trials have entered, the read of the overview that `studydb status` shows, and the read
    of the best trials. COPY loads the studies.
    """
    with ExitStack() as stack:
        server = stack.enter_context(places.postgresql_server(fsync=fsync))
        urls = stack.enter_context(places.databases(server, "small", "large"))
        operations = {}
        for url, n in zip(urls.values(), trials, strict=True):
            loading.load(places.with_tables(url), trials=n)
            waiting.fill(url, rounds * calls + WARM_UP_CALLS)
            loading.settle(url)
            client = Client(url)
            stack.callback(client.close)
            operations[f"{n:,} trials"] = client.operations()
            click.echo(f"Loaded {n:,} trials.", err=True)
        timings = Timings(
            take_turns(operations, rounds=rounds, calls=calls),
            baseline=f"{trials[0]:,} trials",
            conditions={"rounds": rounds, "calls": calls, **places.conditions(server)},
        )
    show(timings, as_json=as_json)
