"""Delete checkpoints that are no longer kept, and bytes that crashes or a failing store left."""

from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from studydb.db import Database
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.records import Study
from studydb.lease.checkpoint_rows import delete_removed
from studydb.lease.upload_collector import delete_uploads
from studydb.operations.quota import recount
from studydb.operations.refresh import refreshed
from studydb.operations.unkept_checkpoints import read_removed, read_unkept, remove_unkept
from studydb.operations.uploads import abandoned_uploads
from studydb.study.storage import read_patiently, write_patiently

BATCH = 100
"""The bytes of this many checkpoints are deleted, then their rows, before the next batch."""


class Collected(Struct, frozen=True):
    """
    What `study.gc` has deleted, or would delete.

    Attributes:
        n: The number of checkpoints.
        size_bytes: The sum of the sizes of these checkpoints.
        left: The URLs of checkpoints whose bytes could not be deleted, because their store fails.
        n_uploads: How many cut-off uploads were deleted, or would be. An attempt's upload counts as
            cut off once the attempt has ended. A person's upload counts as cut off if no trial uses
            the upload 25 hours after the upload began.
        n_uploads_left: How many other cut-off uploads could not be deleted, because their store
            fails.
    """

    n: int
    size_bytes: int
    left: tuple[str, ...] = ()
    n_uploads: int = 0
    n_uploads_left: int = 0


def collect(database: Database, study: Study, *, dry_run: bool) -> Collected:
    """
    Delete the checkpoints that are not kept, and uploads that were cut off.

    First the rows of checkpoints that `keep` does not keep are marked as removed. Then removed
    checkpoints are deleted, 100 at a time, and after them the uploads. Last, if the study has a
    quota, the stored sum of its checkpoints' sizes is computed again.

    The bytes of a checkpoint or an upload are deleted before its row, so if this process dies, the
    rows show a later call what is left. Several processes may collect at the same time.

    Args:
        dry_run: Whether to write nothing, and to return what would be deleted.
    """
    unkept = _unkept(database, study, dry_run=dry_run)
    found = _removed(database, study, dry_run=dry_run)
    n_uploads, n_left = _uploads(database, study, dry_run=dry_run)
    if not dry_run:
        write_patiently(database, lambda: recount(database, study))
    if dry_run:
        found.gone += unkept  # without dry_run they were marked, so `_removed` has found them
    return Collected(
        n=len(found.gone),
        size_bytes=sum(one.size_bytes for one in found.gone),
        left=tuple(one.url for one in found.left),
        n_uploads=n_uploads,
        n_uploads_left=n_left,
    )


@dataclass(slots=True)
class _Removed:
    """`gone`: what was deleted, or would be; `left`: what is left, because a store fails."""

    gone: list[Checkpoint]
    left: list[Checkpoint]


def _unkept(database: Database, study: Study, *, dry_run: bool) -> list[Checkpoint]:
    """Find the checkpoints that `keep` does not keep; mark them as removed unless `dry_run`."""
    found: list[Checkpoint] = []
    after_number: int | None = -1
    while after_number is not None:
        page = read_patiently(partial(read_unkept, database, study, after_number=after_number))
        found += page.checkpoints
        for number in () if dry_run else page.numbers:
            write_patiently(database, partial(remove_unkept, database, study, number))
        after_number = page.next_number
    return found


def _removed(database: Database, study: Study, *, dry_run: bool) -> _Removed:
    """Find removed checkpoints that still have a row; delete bytes and rows unless `dry_run`."""
    found = _Removed([], [])
    after_number: int | None = -1
    while after_number is not None:
        page = read_patiently(partial(read_removed, database, study, after_number=after_number))
        left = [] if dry_run else _delete(database, study, page.checkpoints)
        found.left += left
        found.gone += [one for one in page.checkpoints if one not in left]
        after_number = page.next_number
    return found


def _delete(database: Database, study: Study, found: list[Checkpoint]) -> list[Checkpoint]:
    if not found:
        return []
    stores = database.locations.checkpoint_stores(
        read_patiently(lambda: refreshed(database, study))
    )
    left: list[Checkpoint] = []
    for first in range(0, len(found), BATCH):
        batch = found[first : first + BATCH]
        delete = partial(delete_removed, database, study, batch, trial_uuid="", stores=stores)
        left += write_patiently(database, delete)
    return left


def _uploads(database: Database, study: Study, *, dry_run: bool) -> tuple[int, int]:
    """
    Delete uploads that were cut off, unless `dry_run`.

    Returns:
        How many uploads were deleted, or would be; and how many could not be deleted.
    """
    n, n_left, after_id = 0, 0, 0
    while page := read_patiently(partial(abandoned_uploads, database, study, after_id=after_id)):
        # A page that is tried again counts once: in the end, each upload of it is deleted or left.
        left = (
            0
            if dry_run
            else write_patiently(database, partial(delete_uploads, database, study, page))
        )
        n, n_left, after_id = n + len(page) - left, n_left + left, page[-1].id
    return n, n_left
