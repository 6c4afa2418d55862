"""Where a worker keeps what belongs to no row: output and checkpoints' default store."""

import os
from pathlib import Path

from studydb.artifacts import INLINE, DirectoryStore
from studydb.db import Database
from studydb.domain.records import Lease, Study


def checkpoint_store(database: Database, study: Study) -> str:
    """
    The store's URL: the study's, else the database's default.

    PostgreSQL keeps checkpoints inline; beside an SQLite file there is room in a folder.
    """
    if study.checkpoints is not None:
        return study.checkpoints
    if database.postgresql:
        return INLINE
    return DirectoryStore(_files(database) / "checkpoints").url


def log_dir(database: Database, study: Study, lease: Lease) -> Path:
    """The folder for what one attempt prints, on this host."""
    root = _state() if database.postgresql else _files(database)
    return root / "logs" / study.uuid / str(lease.number) / str(lease.attempt)


def _files(database: Database) -> Path:
    return database.path.with_name(f"{database.path.name}.files")


def _state() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    home = Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state"
    return home / "studydb"
