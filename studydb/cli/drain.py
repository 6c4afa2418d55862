"""`drain`: end a worker and give its trials back."""

from uuid import uuid4

import click

from studydb.cli.opening import opened
from studydb.cli.options import Storage, storage_option
from studydb.cli.printing import print_next
from studydb.cli.workers import SHORT_ID
from studydb.domain.records import renewal_s
from studydb.domain.text.display import visible


@click.command()
@click.argument("worker", metavar="WORKER")
@storage_option
def drain(*, worker: str, storage: Storage) -> None:
    """
    End a worker and give its trials back; `studydb workers` lists workers.

    WORKER is the beginning of its id. The worker learns of it at its next renewal, and acts as on
    SIGTERM: its trials save a checkpoint and wait for another worker; no failure is counted. Its
    exit code is 0, so that no service manager starts it again.
    """
    from studydb.domain.records import Request
    from studydb.operations.drain import drain as ask
    from studydb.operations.drain import find_worker
    from studydb.study.storage import read_patiently, whoami, write_patiently

    with opened(storage) as database:
        found = read_patiently(lambda: find_worker(database, worker))
        request = Request(uuid4().hex, whoami())
        write_patiently(database, lambda: ask(database, found, request))
        again = storage.again(database.url)
    click.echo(
        f"Worker {found.uuid[:SHORT_ID]} on {visible(found.process.host)}: gives back what it runs "
        f"and ends, within {renewal_s(found.lease_s):.0f} s and the time that its trials need to "
        "save."
    )
    print_next(f"studydb workers{again}")
