"""`drain`: end a worker and release its trials."""

from uuid import uuid4

import click

from studydb.cli.opening import opened
from studydb.cli.options import Storage, storage_option
from studydb.cli.printing import print_next
from studydb.domain.text.display import SHORT_ID, visible


@click.command()
@click.argument("worker", metavar="WORKER")
@storage_option
def drain(*, worker: str, storage: Storage) -> None:
    """
    End a worker and release its trials; `studydb workers` lists workers.

    WORKER is the beginning of the worker's id. The worker reads the request within 4 seconds,
    and acts as on SIGTERM: it lets its trials save a checkpoint, makes them PENDING and ends. No
    failure is counted. The worker's exit code is 0, so a service manager that restarts only failed
    processes does not restart this worker.
    """
    from studydb.domain.records import Request, renewal_s
    from studydb.lease.heartbeat import LOOK_S
    from studydb.operations.drain import drain as request_drain
    from studydb.operations.drain import find_worker
    from studydb.study.storage import read_patiently, whoami, write_patiently

    with opened(storage) as database:
        found = read_patiently(lambda: find_worker(database, worker))
        request = Request(uuid4().hex, whoami())
        write_patiently(database, lambda: request_drain(database, found, request))
        suffix = storage.command_suffix(database.url)
    within_s = min(LOOK_S, renewal_s(found.lease_s))
    click.echo(
        f"Worker {found.uuid[:SHORT_ID]} on {visible(found.process.host)}: will start to release "
        f"its trials within {within_s:.0f} s, and end once they have saved."
    )
    print_next(f"studydb workers{suffix}")
