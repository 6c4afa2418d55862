"""Find the checkpoint from which an enqueued trial begins, or upload it from a dict or a path."""

import os
import pickletools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from studydb.artifacts import open_store, sign_checkpoint, store_part
from studydb.artifacts.checkpoint_files import Saver, prepare
from studydb.artifacts.checkpoint_records import Upload
from studydb.db import Database
from studydb.domain.errors import (
    CheckpointError,
    InvalidSpec,
    NotFound,
    StorageError,
    StudydbError,
)
from studydb.domain.records import Study
from studydb.lease.study_folders import make_study_folder
from studydb.operations.create import load
from studydb.operations.refresh import refreshed
from studydb.operations.start_checkpoints import FromTrial, Start, Uploaded
from studydb.operations.uploads import begin_upload_of_person, end_upload
from studydb.settings import load_keyring
from studydb.study.frozen_trial import Checkpoint, FrozenTrial
from studydb.study.storage import read_patiently, write_patiently

PICKLE_SUFFIX = ".pkl"
"""The suffix of a file that holds a pickled dict, such as `Checkpoint.export` writes."""


class SavedByTrial(NamedTuple):
    """
    A checkpoint that a trial has saved.

    Attributes:
        number: The number of the trial.
        step: The checkpoint's step; None for the trial's newest checkpoint.
        study: The name of the trial's study; None for the study of the new trial.
    """

    number: int
    step: int | None = None
    study: str | None = None


StartLike = (
    int | SavedByTrial | FrozenTrial | Checkpoint | Mapping[Any, Any] | str | os.PathLike[str]
)


class Starting(Struct, frozen=True):
    """
    Finds or uploads the checkpoint from which a new trial begins.

    Attributes:
        trial_uuid: The UUID that the new trial will have; the signature of an uploaded checkpoint
            covers this UUID.
    """

    database: Database
    study: Study
    trial_uuid: str

    @contextmanager
    def begin(self, given: StartLike, *, step: int) -> Iterator[Start]:
        """
        Find the checkpoint, or upload a dict or the files of a path.

        If the block raises a StudydbError other than a StorageError, the upload is deleted. After a
        StorageError the trial may be stored.

        Args:
            step: The last step that an uploaded checkpoint contains; 0 for any other checkpoint.

        Raises:
            CheckpointError: The dict or the files cannot be read or stored.
            InvalidSpec: `given` cannot be a checkpoint, or is in another database; or `step` is
                given for a checkpoint of a trial.
            NotFound: `given` is a `FrozenTrial` without a checkpoint.
            UnknownStudy: `given` names a study that does not exist.
        """
        start = self._named(given, step)
        if start is not None:
            yield start
            return
        uploaded, upload = self._upload(_prepared(given), step)
        try:
            yield uploaded
        except StudydbError as error:
            # After a StorageError the trial may be stored: perhaps only COMMIT's reply was lost.
            if not isinstance(error, StorageError):
                self._delete_upload(upload)
            raise

    def _named(self, given: StartLike, step: int) -> FromTrial | None:
        if isinstance(given, FrozenTrial):
            found = given.checkpoint
            if found is None:
                raise NotFound(f"Trial {given.number} has no checkpoint to begin from.")
            named = found.as_start(self.database, newest=True)
        elif isinstance(given, Checkpoint):
            named = given.as_start(self.database)
        elif isinstance(given, SavedByTrial):
            named = self._of_trial(given)
        elif isinstance(given, int) and not isinstance(given, bool):
            named = self._of_trial(SavedByTrial(given))
        else:
            return None
        if step:
            raise InvalidSpec(
                "checkpoint_step is only for a path or a dict. The checkpoint of a trial already "
                "has a step; leave checkpoint_step out."
            )
        return named

    def _of_trial(self, given: SavedByTrial) -> FromTrial:
        study = self.study
        if (name := given.study) is not None and name != study.name:
            study = read_patiently(lambda: load(self.database, name))
        return FromTrial(study.id, study.name, given.number, given.step)

    def _upload(self, prepared: bytes | Path, step: int) -> tuple[Uploaded, Upload | None]:
        keyring = load_keyring()
        current = read_patiently(lambda: refreshed(self.database, self.study))
        saver = Saver(
            self.database.locations.store_url(current.checkpoints),
            study_uuid=self.study.uuid,
            trial_uuid=self.trial_uuid,
            attempt=0,
        )
        upload = saver.begin(step=step)
        if upload is not None:
            read_patiently(
                lambda: make_study_folder(self.database, self.study, store_part(upload.url))
            )
            begin = {"uuid": upload.uuid, "url": upload.url}
            write_patiently(
                self.database, lambda: begin_upload_of_person(self.database, self.study, **begin)
            )
        try:
            saved = saver.save(prepared, step=step, upload=upload)
        except CheckpointError:
            self._delete_upload(upload)
            raise
        row = sign_checkpoint(
            keyring, saved, current.trainable, trial_uuid=self.trial_uuid, trial_id=0, attempt=0
        )
        return Uploaded(row, saved.data), upload

    def _delete_upload(self, upload: Upload | None) -> None:
        """Delete what was uploaded; if that fails, a worker or `gc` deletes it a day later."""
        if upload is None:
            return
        with suppress(StudydbError, OSError):
            open_store(store_part(upload.url)).delete_unfinished(upload.url)
            end_upload(self.database, uuid=upload.uuid)


def _prepared(given: Any) -> bytes | Path:
    if isinstance(given, str) and not given:  # Path("") is the working directory
        raise InvalidSpec("checkpoint is empty; write '.' for the working directory.")
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        # Unlike `pathlib`, `os.path` raises no error if this user may not read a folder above.
        is_file = os.path.isfile(path)  # noqa: PTH113
        if path.suffix == PICKLE_SUFFIX and is_file:
            return _pickle_of(path)
        if not os.path.isdir(path):  # noqa: PTH112
            what = "is a file" if is_file else "does not exist, or cannot be read"
            raise CheckpointError(
                f"The checkpoint {str(path)!r} {what}; give a trial, a directory or a "
                f"{PICKLE_SUFFIX} file."
            )
    elif not isinstance(given, Mapping):
        raise InvalidSpec(
            f"checkpoint is {given!r}; give a trial, its number, one of its checkpoints, a dict, "
            f"or the path of a directory or of a {PICKLE_SUFFIX} file."
        )
    return prepare(given)


def _pickle_of(path: Path) -> bytes:
    """
    Read a file that holds a pickle.

    The pickle is read, but not loaded, because to load a file can run foreign code.

    Raises:
        CheckpointError: The file cannot be read, or holds no complete pickle.
    """
    try:
        data = path.read_bytes()
        for _ in pickletools.genops(data):
            pass
    except OSError as cause:
        raise CheckpointError(f"{path} cannot be read: {cause}.") from cause
    except ValueError as cause:
        raise CheckpointError(
            f"{path} holds no complete pickle: {cause}. Write the file with "
            "pickle.dump(a_dict, file) or Checkpoint.export, or give a directory."
        ) from cause
    return data
