"""The code that a worker's attempts run; a person can replace it while the worker runs."""

import threading
from pathlib import Path

from msgspec import structs

from studydb.artifacts import Stores
from studydb.child.job import TrainableImport
from studydb.db import Database
from studydb.domain.errors import NotAllowed, TrainableError
from studydb.domain.records import Study
from studydb.domain.text.display import visible
from studydb.lease.checkpoint_rows import Checkpoints
from studydb.settings import Keyring
from studydb.trainables import Trust, check_python, check_trusted
from studydb.worker.templates import Templates
from studydb.worker.worker_options import WorkerOptions


def trusted_import(
    database: Database, study: Study, keyring: Keyring, options: WorkerOptions
) -> TrainableImport:
    """
    Check that this worker may run a study's trainable, and describe the import of the trainable.

    Raises:
        NotAllowed: The study has no trainable.
        Untrusted: See `check_trusted`.
        TrainableError: Another version of Python has pickled the trainable, or the worker's working
            directory is gone.
    """
    if study.trainable is None:
        raise NotAllowed(
            f"Study {study.name!r} has no trainable: its trials are run by the user's own program "
            "through study.ask(). A worker has nothing to run."
        )
    trust = check_trusted(study.trainable, study.uuid, keyring, options.allow_imports)
    check_python(study.trainable)  # with another Python version every trial would fail
    signed = trust is Trust.SIGNED
    own = _working_directory(options)
    workdirs = (own, study.trainable.workdir) if signed else (own,)
    stores = database.locations.checkpoint_stores(study)
    return TrainableImport(study.uuid, study.trainable, signed, workdirs, stores)


def _working_directory(options: WorkerOptions) -> str:
    try:
        return str(options.workdir or Path.cwd())
    except OSError as cause:
        raise TrainableError(
            "The worker's working directory does not exist any more. "
            "Start the worker with --workdir and a directory that exists here."
        ) from cause


class CurrentCode:
    """The trainable and the checkpoint stores of a study, read anew for each attempt."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        options: WorkerOptions,
        *,
        to_import: TrainableImport,
        checkpoints: Checkpoints,
        templates: Templates,
    ) -> None:
        self._database, self._keyring, self._options = database, keyring, options
        self._to_import, self._checkpoints, self._templates = to_import, checkpoints, templates
        self._lock = threading.Lock()

    @property
    def known(self) -> TrainableImport:
        """The trainable of the last `read`; before any `read`, the worker's first trainable."""
        return self._to_import

    def read(self) -> tuple[TrainableImport, Stores]:
        """
        Read what an attempt runs and where its checkpoints are; call this after the claim.

        If the trainable was replaced since the last call, the caller's job never goes to a process
        that has imported the former trainable. Another slot that has read the former trainable just
        before still runs its attempt with it.

        Raises:
            StorageTransient: The database did not answer in time.
            NotAllowed, Untrusted, TrainableError: See `trusted_import`.
        """
        with self._lock:  # so that slots adopt trainables in the order of their reads
            study = self._checkpoints.refresh()
            stores = self._database.locations.checkpoint_stores(study)
            if study.trainable is None or study.trainable.uuid != self._to_import.trainable.uuid:
                self._to_import = trusted_import(
                    self._database, study, self._keyring, self._options
                )
                self._templates.adopt(self._to_import.trainable)
                name = visible(self._to_import.trainable.name)
                self._options.say(f"the study was given other code; trials now run {name}")
            elif stores != self._to_import.stores:  # objects of `with_parameters` may be there
                self._to_import = structs.replace(self._to_import, stores=stores)
            return self._to_import, stores
