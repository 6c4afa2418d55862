"""Delete what retention has removed and a crash, or a failing store, has left behind."""

from dataclasses import dataclass
from functools import partial
from itertools import groupby

from studydb.db import Database
from studydb.domain.records import Checkpoint, Study
from studydb.lease.checkpoint_rows import delete_removed
from studydb.operations.refresh import refreshed
from studydb.operations.removed_checkpoints import read_removed
from studydb.study.storage import read_patiently, write_patiently

BATCH = 100
"""How many checkpoints are deleted before their rows are."""


@dataclass(frozen=True, slots=True)
class Collected:
    """
    What `study.gc` has deleted, or would delete.

    Attributes:
        n: The number of checkpoints.
        size_bytes: Their bytes together.
        left: The URLs of checkpoints whose bytes could not be deleted, because their store fails.
    """

    n: int
    size_bytes: int
    left: tuple[str, ...] = ()


def collect(database: Database, study: Study, *, dry_run: bool) -> Collected:
    """
    Delete the bytes, then the rows, of a study's removed checkpoints, 100 at a time.

    A row goes after its bytes. So if this process dies, a later call finds what is left; several
    processes may collect at once.
    """
    n, size_bytes, after_number = 0, 0, -1
    left: list[str] = []
    while True:
        page = read_patiently(partial(read_removed, database, study, after_number=after_number))
        kept = [] if dry_run else _delete(database, study, page.checkpoints)
        left += [one.url for one in kept]
        gone = [one for one in page.checkpoints if one not in kept]
        n, size_bytes = n + len(gone), size_bytes + sum(one.size_bytes for one in gone)
        if page.next_number is None:
            return Collected(n, size_bytes, tuple(left))
        after_number = page.next_number


def _delete(database: Database, study: Study, found: list[Checkpoint]) -> list[Checkpoint]:
    if not found:
        return []
    stores = database.locations.checkpoint_stores(
        read_patiently(lambda: refreshed(database, study))
    )
    left: list[Checkpoint] = []
    for trial_uuid, group in groupby(found, key=lambda one: one.trial_uuid):
        mine = list(group)
        for first in range(0, len(mine), BATCH):
            delete = partial(
                delete_removed,
                database,
                study,
                mine[first : first + BATCH],
                trial_uuid=trial_uuid or "",
                stores=stores,
            )
            left += write_patiently(database, delete)
    return left
