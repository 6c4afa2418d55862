"""Where logs and checkpoints lie: folders of this host, and the stores of a study's checkpoints."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.inline import INLINE
from studydb.artifacts.store import check_uuid
from studydb.artifacts.store_urls import open_store
from studydb.artifacts.stores import Stores
from studydb.domain.errors import StorageError, UsageError
from studydb.domain.records import Lease, Study
from studydb.settings import expanded

_LOG_PARTS = 4
"""logs/STUDY/TRIAL/ATTEMPT: what the folders of one attempt have in common on all hosts."""


@dataclass(frozen=True, slots=True)
class Locations:
    """
    Where the logs and checkpoints of one database's studies lie, as seen from this host.

    Attributes:
        database_file: The SQLite file, which has a folder beside it; None for PostgreSQL, whose
            logs lie below `$XDG_STATE_HOME`, and whose checkpoints are inline unless the study
            names a store.
    """

    database_file: Path | None

    def checkpoint_stores(self, study: Study) -> Stores:
        """The stores of a study's checkpoints; the database's default for those without a URL."""
        former = (self._store_url(url) for url in study.former_checkpoints)
        return Stores(self._store_url(study.checkpoints), tuple(former))

    def log_dir(self, study: Study, lease: Lease) -> Path:
        """The folder for what one attempt prints."""
        return self.log_root(study) / str(lease.number) / str(lease.attempt)

    def log_root(self, study: Study) -> Path:
        """The folder for what the trials of a study print."""
        return self._log_folder / "logs" / check_uuid(study.uuid, of="study")

    def recorded_log_dir(self, study: Study, lease: Lease, recorded: str | None) -> Path:
        """
        The folder that an attempt's row names, if a worker of studydb's can have used it.

        Its worker may have had another home, but not another study, trial or attempt: a row that
        names any other folder is not followed.
        """
        ours = self.log_dir(study, lease)
        path = Path(recorded or ours)
        ends_alike = path.parts[-_LOG_PARTS:] == ours.parts[-_LOG_PARTS:]
        return path if path.is_absolute() and ".." not in path.parts and ends_alike else ours

    def remove_files(self, study: Study) -> None:
        """
        Remove all checkpoints of a study, and its output on this host.

        Raises:
            CheckpointError: The store refuses.
            StorageError: The folder of the output cannot be removed.
        """
        for store in self.checkpoint_stores(study).directories():
            open_store(store).delete_study(study.uuid)
        root = self.log_root(study)
        try:
            shutil.rmtree(root)
        except FileNotFoundError:
            return
        except OSError as cause:
            raise StorageError(f"The output in {root} cannot be removed: {cause}.") from cause

    def _store_url(self, url: str | None) -> str:
        if url is not None:
            return url
        if self.database_file is None:
            return INLINE
        return DirectoryStore(_beside(self.database_file) / "checkpoints").url

    @property
    def _log_folder(self) -> Path:
        return _state() if self.database_file is None else _beside(self.database_file)


def _beside(database_file: Path) -> Path:
    return database_file.with_name(f"{database_file.name}.files")


def _state() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    try:
        return expanded(configured if configured.startswith("/") else "~/.local/state") / "studydb"
    except UsageError as cause:
        raise UsageError(
            "There is no place for what trials print: this user has no home directory. Set HOME or "
            "XDG_STATE_HOME."
        ) from cause
