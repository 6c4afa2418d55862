"""The folders of logs and of trials' files on this host, and the stores of checkpoints."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.inline import INLINE
from studydb.artifacts.store import check_uuid
from studydb.artifacts.store_urls import open_store
from studydb.artifacts.stores import Stores
from studydb.domain.errors import StorageError, UsageError
from studydb.settings import expanded

if TYPE_CHECKING:
    from studydb.domain.records import Lease, Study

_LOG_PARTS = 4
"""The log folder of an attempt ends in logs/STUDY/TRIAL/ATTEMPT on every host."""


_TRIAL_DIRECTORY = "files"


class Locations(Struct, frozen=True):
    """
    Where the logs and checkpoints of one database's studies are, as seen from this host.

    Attributes:
        database_file: The SQLite file; logs, and by default checkpoints, are in a folder beside it.
            None for PostgreSQL: logs are below `$XDG_STATE_HOME` (by default `~/.local/state`), and
            checkpoints are by default in the database.
    """

    database_file: Path | None

    def checkpoint_stores(self, study: "Study") -> Stores:
        """Return a study's checkpoint stores; a study that names no store has the default store."""
        return Stores(
            self.store_url(study.checkpoints),
            former=tuple(map(self.store_url, study.former_checkpoints)),
            study_uuid=study.uuid,
            sources={
                uuid: tuple(map(self.store_url, stores))
                for uuid, stores in study.source_checkpoints.items()
            },
        )

    def log_dir(self, study: "Study", lease: "Lease") -> Path:
        return self.log_root(study) / str(lease.number) / str(lease.attempt)

    def trial_directory(self, study: "Study", lease: "Lease") -> Path:
        """Return the directory that a trial keeps on this host, beside the logs of its attempts."""
        return self.log_root(study) / str(lease.number) / _TRIAL_DIRECTORY

    def log_root(self, study: "Study") -> Path:
        """Return the folder on this host for the output and the directories of a study's trials."""
        file = self.database_file
        folder = _state_folder() if file is None else _files_folder(file)
        return folder / "logs" / check_uuid(study.uuid, noun="study")

    def recorded_log_dir(self, study: "Study", lease: "Lease", recorded: str | None) -> Path:
        """
        Return the folder that an attempt's row names.

        A worker with another home directory records another path, but that path is absolute, has no
        "..", and also ends in the study, trial and attempt. If the row names no path, or another
        path, which no worker has written, the method returns `log_dir`.
        """
        ours = self.log_dir(study, lease)
        path = Path(recorded or ours)
        ends_alike = path.parts[-_LOG_PARTS:] == ours.parts[-_LOG_PARTS:]
        return path if path.is_absolute() and ".." not in path.parts and ends_alike else ours

    def remove_files(self, study: "Study") -> None:
        """
        Remove the files of a study's trials on this host.

        These files are the output of the attempts and the directories of the trials.

        Raises:
            StorageError: The folder of these files cannot be removed.
        """
        root = self.log_root(study)
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(root)
        except OSError as cause:
            raise StorageError(f"The output in {root} cannot be removed: {cause}.") from cause

    def remove_folders(self, study: "Study") -> None:
        """Remove a study's folders from its stores; their contents have been removed before."""
        for store in self.checkpoint_stores(study).own():
            open_store(store).remove_folder(study.uuid)

    def store_url(self, url: str | None) -> str:
        """Return the URL of the store that a study names; None stands for the default store."""
        if url is not None:
            return url
        if self.database_file is None:
            return INLINE
        return DirectoryStore(_files_folder(self.database_file) / "checkpoints").url


def _files_folder(database_file: Path) -> Path:
    """
    Return the folder beside an SQLite file.

    If the path is a link to the file, the folder is beside the file itself, so that all paths to a
    file have the same folder. But if there is a folder beside the link, which an earlier version of
    studydb has made, this folder counts.
    """
    folder = database_file.with_name(f"{database_file.name}.files")
    if not database_file.is_symlink() or folder.exists():
        return folder
    file = Path(os.path.realpath(database_file))
    return file.with_name(f"{file.name}.files")


def _state_folder() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    try:
        return expanded(configured if configured.startswith("/") else "~/.local/state") / "studydb"
    except UsageError as cause:
        raise UsageError(
            "The output of trials has no folder: this user has no home directory. Set HOME or "
            "XDG_STATE_HOME."
        ) from cause
