"""
The folder of a study in a directory that stores checkpoints, and which host may make it.

A host that has not mounted a shared directory sees a missing or empty directory in its place. If
that host wrote checkpoints there, no other host would find them. The newest kept checkpoint that an
attempt has saved in a directory decides: a host makes a folder only if it sees this checkpoint, or
if there is none. No host makes a folder in a former store.
"""

from studydb.artifacts import Stores, open_store, store_part
from studydb.db import Database
from studydb.domain.errors import CheckpointError
from studydb.domain.records import Study
from studydb.operations.checkpoints import newest_in_directory
from studydb.operations.refresh import refreshed


def make_study_folder(database: Database, study: Study, store_url: str) -> None:
    """
    Make the study's folder in a store before an object is written there; keep a folder that exists.

    The study's stores are read again, because a person may have changed them. No folder is made in
    a former store: the directory may have been moved, or this host may not have mounted it.

    Raises:
        CheckpointError: The folder cannot be made; or this host does not see the directory in which
            other processes save the study's checkpoints.
    """
    store = open_store(store_url)
    if store.has_study(study.uuid):
        return
    study = refreshed(database, study)
    stores = database.locations.checkpoint_stores(study)
    is_former = store_url != stores.current and store_url in stores.former
    newest = newest_in_directory(database, study)
    if is_former or (newest is not None and not _is_seen(newest, study, stores)):
        store.check_study(study.uuid)
    store.add_study(study.uuid)


def unmounted_stores(database: Database, study: Study) -> dict[str, CheckpointError]:
    """
    Find the stores that this host has perhaps not mounted, so that it cannot delete what they hold.

    An own store that lacks the study's folder counts as not mounted if this host does not see the
    newest checkpoint that an attempt has saved in a directory, or the newest that was saved in this
    store. If a directory was moved, the host sees the checkpoint in another store.

    If a deletion has begun, it may have deleted these checkpoints, but not yet the study's folder
    around them. Then it is enough that the host sees this folder around the first of the two.

    Returns:
        An error for each such store, by the store's URL.
    """
    stores = database.locations.checkpoint_stores(study)
    missing = {url: error for url in stores.own() if (error := _absence(url, study)) is not None}
    if not missing or (newest := newest_in_directory(database, study)) is None:
        return {}
    if not _is_seen(newest, study, stores):
        return missing
    if study.is_being_deleted:
        return {}
    newest_there = {url: newest_in_directory(database, study, url) for url in missing}
    return {
        url: error
        for url, error in missing.items()
        if (saved := newest_there[url]) is not None and not _is_seen(saved, study, stores)
    }


def moved_directories(database: Database, study: Study, stores: Stores) -> set[str]:
    """
    Find the directories that have been moved.

    They lack the study's folder, and the newest checkpoint that an attempt has saved there is in
    another store that this host sees.
    """
    return {
        url
        for url in stores.own()
        if _absence(url, study) is not None
        and (saved := newest_in_directory(database, study, url)) is not None
        and _is_seen(saved, study, stores)
    }


def _absence(store_url: str, study: Study) -> CheckpointError | None:
    try:
        open_store(store_url).check_study(study.uuid)
    except CheckpointError as error:
        return error
    return None


def _is_seen(url: str, study: Study, stores: Stores) -> bool:
    """Whether this host sees a checkpoint; for a deletion, whether it sees the study's folder."""
    try:
        if study.is_being_deleted:  # if the URL names no store, any directory may hold it
            named = [store for store in stores.own() if store.rstrip("/") == store_part(url)]
            places = [open_store(place) for place in named or stores.own()]
            return any(place.has_study(study.uuid) for place in places if not place.is_remote)
        return open_store(stores.store_of(url)).exists(url)
    except (CheckpointError, OSError):
        return False
