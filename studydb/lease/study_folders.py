"""
The folder of a study in a directory that stores checkpoints, and which host may make it.

A host that has not mounted a shared directory sees a missing or empty directory in its place. If
that host wrote checkpoints there, no other host would find them. The newest kept checkpoint that an
attempt has saved in a directory decides: a host makes a folder only if it sees this checkpoint, or
if there is none.
"""

from studydb.artifacts import open_store
from studydb.db import Database
from studydb.domain.errors import CheckpointError
from studydb.domain.records import Study
from studydb.operations.checkpoints import newest_in_directory
from studydb.operations.refresh import refreshed


def make_study_folder(database: Database, study: Study, store_url: str) -> None:
    """
    Make the study's folder in a store before an object is written there; keep a folder that exists.

    The study's stores are read again, because a person may have changed them.

    Raises:
        CheckpointError: The folder cannot be made; or this host does not see the directory in which
            other processes save the study's checkpoints.
    """
    store = open_store(store_url)
    if store.has_study(study.uuid):
        return
    if _saves_elsewhere(database, refreshed(database, study)):
        store.check_study(study.uuid)
    store.add_study(study.uuid)


def unmounted_stores(database: Database, study: Study) -> dict[str, CheckpointError]:
    """
    Find the stores that this host has perhaps not mounted, so that it cannot delete what they hold.

    Returns:
        An error for each own store of the study that lacks the study's folder, by the store's URL.
        Empty if this host sees the newest checkpoint that an attempt has saved in a directory. If a
        deletion has begun, it may have deleted this checkpoint, but not yet the study's folder
        around it; then it is enough that the host sees this folder.
    """
    stores = database.locations.checkpoint_stores(study).own()
    missing = {url: error for url in stores if (error := _absence(url, study)) is not None}
    return missing if missing and _saves_elsewhere(database, study) else {}


def _absence(store_url: str, study: Study) -> CheckpointError | None:
    try:
        open_store(store_url).check_study(study.uuid)
    except CheckpointError as error:
        return error
    return None


def _saves_elsewhere(database: Database, study: Study) -> bool:
    """Whether this host does not see the newest checkpoint that an attempt saved in a directory."""
    url = newest_in_directory(database, study)
    if url is None:
        return False
    stores = database.locations.checkpoint_stores(study)
    try:
        store = open_store(stores.likely_store_of(url))
        if study.is_being_deleted:
            return not store.has_study(study.uuid)
        return not store.exists(url)
    except (CheckpointError, OSError):
        return True
