"""Where a worker keeps what belongs to no row: output and checkpoints' default store."""

import os
import shutil
from pathlib import Path

from studydb.artifacts import INLINE, DirectoryStore, Stores, check_uuid, open_store
from studydb.db import Database
from studydb.domain.errors import StorageError, UsageError
from studydb.domain.records import Lease, Study
from studydb.settings import expanded

_LOG_PARTS = 4
"""logs/STUDY/TRIAL/ATTEMPT: what the folders of one attempt have in common on all hosts."""


def checkpoint_stores(database: Database, study: Study) -> Stores:
    """The stores of a study's checkpoints, the database's default for those that name none."""
    former = (_store_url(database, url) for url in study.former_checkpoints)
    return Stores(_store_url(database, study.checkpoints), tuple(former))


def _store_url(database: Database, url: str | None) -> str:
    """PostgreSQL keeps checkpoints inline; beside an SQLite file there is room in a folder."""
    if url is not None:
        return url
    if database.postgresql:
        return INLINE
    return DirectoryStore(_files(database) / "checkpoints").url


def log_dir(database: Database, study: Study, lease: Lease) -> Path:
    """The folder for what one attempt prints, on this host."""
    return log_root(database, study) / str(lease.number) / str(lease.attempt)


def log_root(database: Database, study: Study) -> Path:
    """The folder for what the trials of a study print, on this host."""
    root = _state() if database.postgresql else _files(database)
    return root / "logs" / check_uuid(study.uuid, of="study")


def recorded_log_dir(database: Database, study: Study, lease: Lease, told: str | None) -> Path:
    """
    The folder that an attempt's row names, if a worker of studydb's can have used it.

    Its worker may have had another home, but not another study, trial or attempt: a row that names
    any other folder is not followed.
    """
    ours = log_dir(database, study, lease)
    path = Path(told or ours)
    ends_alike = path.parts[-_LOG_PARTS:] == ours.parts[-_LOG_PARTS:]
    return path if path.is_absolute() and ".." not in path.parts and ends_alike else ours


def remove_files(database: Database, study: Study) -> None:
    """
    Remove all checkpoints of a study, and its output on this host.

    Raises:
        CheckpointError: The store does not let us.
        StorageError: Neither does the folder of the output.
    """
    for store in checkpoint_stores(database, study).directories():
        open_store(store).delete_study(study.uuid)
    root = log_root(database, study)
    try:
        shutil.rmtree(root)
    except FileNotFoundError:
        return
    except OSError as cause:
        raise StorageError(f"The output in {root} cannot be removed: {cause}.") from cause


def _files(database: Database) -> Path:
    return database.path.with_name(f"{database.path.name}.files")


def _state() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    try:
        return expanded(configured if configured.startswith("/") else "~/.local/state") / "studydb"
    except UsageError as cause:
        raise UsageError(
            "There is no place for what trials print: this user has no home directory. Set HOME or "
            "XDG_STATE_HOME."
        ) from cause
