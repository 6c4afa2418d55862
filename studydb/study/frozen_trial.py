"""The trials that `Study` returns, and their checkpoints, whose bytes can be read."""

import atexit
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

from msgspec import structs

from studydb.artifacts import INLINE, is_signed
from studydb.artifacts.checkpoint_files import Restored, fetch
from studydb.artifacts.checkpoint_records import Restore
from studydb.artifacts.restore_cache import open_cache
from studydb.artifacts.tree import new_directory
from studydb.db import Database
from studydb.domain import records
from studydb.domain.checkpoint import CheckpointKind, KeptCheckpoint
from studydb.domain.errors import CheckpointError, InvalidSpec
from studydb.operations.refresh import refreshed
from studydb.operations.restore import kept, newest, restore
from studydb.operations.start_checkpoints import FromTrial
from studydb.settings import SIGNING_KEY, cache_size_bytes, expanded, load_keyring
from studydb.study.storage import read_patiently
from studydb.temporary import TemporaryDirectory, remove_abandoned

DICT_FILE = "checkpoint.pkl"
"""The name of the file that `export` writes for a dict."""


class Checkpoint:
    """
    A checkpoint of a trial. Its methods read and verify the bytes.

    Attributes:
        step: The last step that the checkpoint contains; the trial's best step may be earlier.
        value: The value of the study's metric at that step; None if no result was reported there.
        kind: "dict", for `to_dict`, or "directory", for `path`.
        size_bytes: The size of the stored bytes.
    """

    def __init__(
        self,
        database: Database,
        study: records.Study,
        trial: records.TrialRow,
        kept: KeptCheckpoint,
    ) -> None:
        row, self.value = kept
        self.step, self.kind, self.size_bytes = row.step, row.kind, row.size_bytes
        self._database, self._study, self._trial, self._row = database, study, trial, row
        self._copy: Path | None = None

    def to_dict(self) -> dict[Any, Any]:
        """
        Read the dict; each call returns a new dict.

        Raises:
            CheckpointError: The checkpoint is a directory, or is missing or damaged, or no key of
                yours signed it.
        """
        if self.kind != CheckpointKind.DICT:
            raise CheckpointError("The checkpoint is a directory; use its .path.")
        return self.fetched(Path()).to_dict()

    @property
    def path(self) -> Path:
        """
        A copy of the directory; the copy is removed at the end of this process.

        Raises:
            CheckpointError: The checkpoint is a dict, or is missing or damaged, or no key of yours
                signed it.
        """
        if self.kind == CheckpointKind.DICT:
            raise CheckpointError("The checkpoint is a dict; use its .to_dict().")
        if self._copy is None or not self._copy.exists():
            self._copy = self.export(_new_place() / "checkpoint")
        return self._copy

    def export(self, target: str | Path) -> Path:
        """
        Copy the checkpoint to a directory that does not exist yet.

        A dict becomes the file `checkpoint.pkl` in the new directory. Python's `pickle.load` reads
        that file if the classes of the values can be imported.

        Returns:
            The absolute path of the directory.

        Raises:
            CheckpointError: The target exists or cannot be written, or the checkpoint is missing or
                damaged, or no key of yours signed it.
            UsageError: The target begins with "~", and that home directory is unknown.
        """
        path = expanded(target).absolute()
        if path.exists():
            raise CheckpointError(f"{path} exists; name a directory that does not exist.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            restored = self.fetched(path)
            if restored.data is not None:
                _write_new(path, restored.data)
        except OSError as cause:
            raise CheckpointError(
                f"The checkpoint of trial {self._trial.number} cannot be copied to {path}: {cause}."
            ) from cause
        return path

    def as_start(self, database: Database, *, newest: bool = False) -> FromTrial:
        """
        Name this checkpoint as the start of a new trial in the given database.

        Args:
            newest: Whether to name, in place of this checkpoint, the newest checkpoint that its
                trial has when the new trial is added.

        Raises:
            InvalidSpec: The checkpoint is in another database.
        """
        if database.url != self._database.url:
            raise InvalidSpec(
                f"The checkpoint of trial {self._trial.number} is in another database. Export it, "
                "and give the path: study.enqueue(…, checkpoint=saved.export('model'))."
            )
        named = FromTrial(self._study.id, self._study.name, self._trial.number)
        return (
            named if newest else structs.replace(named, step=self.step, checkpoint_id=self._row.id)
        )

    def fetched(self, target: Path) -> Restored:
        """
        Read and verify the bytes; a directory is copied to `target`, which must not exist.

        Raises:
            CheckpointError: The checkpoint is missing or damaged, no key of yours signed it, or
                this host cannot reach the store or write the copy.
        """
        row, database = self._row, self._database
        self._verify()
        data = None
        if row.url == INLINE:
            data = read_patiently(lambda: restore(database, checkpoint=row))
        study = read_patiently(lambda: refreshed(database, self._study))
        stores = database.locations.checkpoint_stores(study)
        what = Restore.of(row, data=data, stores=stores)
        try:
            return fetch(what, target=target, cache=open_cache(cache_size_bytes()))
        except OSError as cause:
            if cause.errno is None:  # the store's own text says what is wrong, and what to do
                raise CheckpointError(str(cause)) from cause
            raise self._unreadable(cause) from cause

    def _unreadable(self, cause: OSError) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint of trial {self._trial.number} at step {self.step} cannot be read or "
            f"copied on this host: {cause}."
        )

    def _verify(self) -> None:
        """Refuse a checkpoint that no key of yours signed, because reading it can run code."""
        keyring = load_keyring(create=False)
        if not is_signed(keyring, self._row, trial_uuid=self._row.trial_uuid or self._trial.uuid):
            raise CheckpointError(
                f"The checkpoint of trial {self._trial.number} at step {self.step} is not signed "
                "by a key of yours, and opening it could run someone else's code. If you trust the "
                f"workers that wrote it, append the lines of their user's key file to "
                f"{keyring.path}, or set {SIGNING_KEY}."
            )

    def __repr__(self) -> str:
        return f"<checkpoint of step {self.step}: {self.kind}, {self.size_bytes:,} bytes>"


@dataclass(frozen=True, slots=True, repr=False)
class FrozenTrial(records.TrialRow):
    """
    A trial's row with its checkpoints.

    Attributes that the view `v_trial` also shows have the names of its columns.
    """

    _checkpoint: Callable[[records.TrialRow], Checkpoint | None] = field(
        default=lambda _: None, compare=False
    )
    _checkpoints: Callable[[records.TrialRow], list[Checkpoint]] = field(
        default=lambda _: [], compare=False
    )

    _score: Callable[[float], float] = field(default=lambda value: value, compare=False)

    @classmethod
    def of(cls, row: records.TrialRow, database: Database, study: records.Study) -> Self:
        """Copy a row into a trial that can read its checkpoints; restore the floats of params."""

        def checkpoint(trial: records.TrialRow) -> Checkpoint | None:
            found = read_patiently(lambda: newest(database, trial=trial, study_id=study.id))
            return None if found is None else Checkpoint(database, study, trial, found)

        def checkpoints(trial: records.TrialRow) -> list[Checkpoint]:
            found = read_patiently(lambda: kept(database, trial=trial))
            return [Checkpoint(database, study, trial, each) for each in found]

        columns = {name: getattr(row, name) for name in _FIELDS}
        space = study.space
        columns |= {name: space.restore_floats(columns[name]) for name in ("params", "config")}
        columns["changed"] = space.restore_floats_by_path(row.changed)
        return cls(
            **columns,
            _checkpoint=checkpoint,
            _checkpoints=checkpoints,
            _score=study.objective.score,
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint or None; it has `.step`, `.to_dict()`, `.path`, `.export(DIR)`."""
        return self._checkpoint(self)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """
        The kept checkpoints of this trial, in the order of the saves.

        A checkpoint that a person uploaded for this trial (see `Study.enqueue`) comes first. Each
        checkpoint has `.step`, `.value`, `.size_bytes`, `.to_dict()`, `.path` and `.export(DIR)`.
        If the trial begins from another trial's checkpoint, as a clone may, `checkpoint` is at
        first that checkpoint, and this list is empty until the trial has saved.
        """
        return self._checkpoints(self)

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """
        The kept checkpoint with the best value at its step; if none has a value, `checkpoint`.

        None if the trial has no checkpoint. To be sure that the best step's checkpoint is kept,
        give the study `keep='best=1'`, or pin the checkpoint.
        """
        valued = [
            (self._score(one.value), one) for one in self.checkpoints if one.value is not None
        ]
        return min(valued, key=lambda each: each[0])[1] if valued else self.checkpoint


@cache
def _folder_of(pid: int) -> TemporaryDirectory:
    """Make the directory for a process's copies; after a kill, a later process removes it."""
    remove_abandoned()
    folder = TemporaryDirectory()
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: TemporaryDirectory, pid: int) -> None:
    if os.getpid() == pid:  # a fork inherits the call, but its parent needs the directory
        folder.remove()


def _new_place() -> Path:
    """Make a directory for one copy; it is inside this process's directory for all copies."""
    try:
        if not Path(_folder_of(os.getpid()).path).is_dir():  # it was deleted
            _folder_of.cache_clear()
        return Path(tempfile.mkdtemp(prefix="checkpoint-", dir=_folder_of(os.getpid()).path))
    except OSError as cause:
        raise CheckpointError(
            f"No directory can be made for a copy of the checkpoint: {cause}. Free space there, or "
            "set TMPDIR to another directory, and start this process again."
        ) from cause


_FIELDS = tuple(each.name for each in fields(records.TrialRow))


def _write_new(directory: Path, data: bytes) -> None:
    with new_directory(directory):
        (directory / DICT_FILE).write_bytes(data)
