"""
The folder of a study in a directory that stores checkpoints, and which host may make it.

A host that has not mounted a shared directory sees a missing or empty directory in its place. If
that host wrote checkpoints there, no other host would find them. Therefore a host makes the folder
only if the database names no checkpoint in this store.
"""

from studydb.artifacts import open_store, parts_of
from studydb.db import Database
from studydb.domain.errors import CheckpointError
from studydb.domain.records import Study
from studydb.operations.checkpoints import has_checkpoints_below


def make_study_folder(database: Database, study: Study, url: str) -> None:
    """
    Make the study's folder in a store before an object is written there, if this host may make it.

    Without the folder, the store refuses the object, and says that its directory is not mounted.

    Args:
        url: The URL that the object will have.

    Raises:
        CheckpointError: The folder cannot be made.
    """
    store = store_of_new(url)
    if not _is_elsewhere(database, study, store):
        open_store(store).add_study(study.uuid)


def check_study_folders(database: Database, study: Study) -> None:
    """
    Check that this host can delete the checkpoints of a study.

    Raises:
        CheckpointError: The study has checkpoints in a directory that is not mounted on this host.
    """
    for store in database.locations.checkpoint_stores(study).outside_database():
        if _is_elsewhere(database, study, store):
            raise CheckpointError(
                f"Study {study.name!r} has checkpoints in {store}, but this host has no folder "
                f"{study.uuid} there, so their files would be left. Nothing was deleted. Mount the "
                "directory, or delete the study on a host that has it. If the files were deleted "
                "on purpose, make this folder first."
            )


def store_of_new(url: str) -> str:
    """Return the URL of the store for which studydb has made an object's URL."""
    return "/".join(url.split("/")[: -len(parts_of(url) or ())])


def _is_elsewhere(database: Database, study: Study, store: str) -> bool:
    """Whether a store has checkpoints of the study, but no folder of the study on this host."""
    if open_store(store).has_study(study.uuid):
        return False
    return has_checkpoints_below(database, study, url=f"{store.rstrip('/')}/{study.uuid}/")
