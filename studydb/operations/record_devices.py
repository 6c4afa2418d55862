"""Record which devices an attempt holds."""

from collections.abc import Sequence

from studydb.db import Database
from studydb.domain.records import Lease
from studydb.store import attempts


def record_devices(database: Database, lease: Lease, names: Sequence[str]) -> None:
    """Store the devices of an attempt, for people to read; do nothing if the attempt has ended."""
    with database.begin(durable=False, single=True) as txn:
        attempts.set_devices(txn, lease=lease, names=names)
