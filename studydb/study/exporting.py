"""`studydb export-model`: let the trainable write its model from a checkpoint, in this process."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studydb.artifacts import Stores
from studydb.child import run as child
from studydb.child.job import TrainableImport
from studydb.domain.errors import CheckpointError, NotAllowed, TrainableError
from studydb.domain.records import Study
from studydb.domain.trainable import TrainableKind
from studydb.settings import load_keyring
from studydb.study.frozen_trial import Checkpoint, FrozenTrial
from studydb.temporary import TemporaryDirectory
from studydb.trainables import EXPORT_ATTRIBUTE, Trust, check_trusted, export_of_class


def export_model(
    study: Study,
    trial: FrozenTrial,
    checkpoint: Checkpoint,
    target: Path,
    *,
    workdir: Path,
    stores: Stores,
) -> Path:
    """
    Write the model of a checkpoint to a new directory, in the format that the trainable writes.

    A class has a method `export_model(directory)`, which is called after `setup` and
    `load_checkpoint`. A function has an attribute of this name: another function, which is called
    with the config, the checkpoint and the directory. The method or function writes to a hidden
    directory next to `target`. That directory is renamed at the end, so that `target` never
    contains half a model.

    Args:
        workdir: The directory that this process enters. The trainable is looked for in this
            directory first, then in the study's own working directory.
        stores: The study's stores, for the objects that are bound to the trainable.

    Raises:
        NotAllowed: The study's trainable exports no model.
        Untrusted: See `check_trusted`.
        TrainableError: The trainable cannot be loaded, or its `export_model` is not callable.
        CheckpointError: The target exists or cannot be written, the trainable has written nothing,
            or the checkpoint cannot be read.
        BaseException: What the user's code raises.
    """
    if target.exists():
        raise CheckpointError(f"{target} exists; name a directory that does not exist.")
    trainable = study.trainable
    if trainable is None or trainable.kind == TrainableKind.COMMAND:
        raise NotAllowed(_refusal(study))
    trust = check_trusted(trainable, study.uuid, load_keyring())
    workdirs = (str(workdir), trainable.workdir)
    to_import = TrainableImport(study.uuid, trainable, trust is Trust.SIGNED, workdirs, stores)
    with TemporaryDirectory() as scratch:
        restored = checkpoint.fetched(Path(scratch) / "checkpoint")
        child.prepare(to_import)
        write = _writer(study, child.import_trainable(to_import))
        made = _make_hidden(target)
        try:
            write(dict(trial.config or {}), restored, str(made))
            _finish(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target


def _writer(study: Study, function: Any) -> Callable[[dict[str, Any], Any, str], None]:
    if isinstance(function, type):
        write = export_of_class(function)
    else:
        write = getattr(function, EXPORT_ATTRIBUTE, None)
    if write is None:
        raise NotAllowed(_refusal(study))
    if not callable(write):
        raise TrainableError(f"{EXPORT_ATTRIBUTE} is {write!r}; give a function.")
    return write


def _make_hidden(target: Path) -> Path:
    made = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        made.mkdir(parents=True)
    except OSError as cause:
        raise CheckpointError(f"The model cannot be written to {target}: {cause}.") from cause
    return made


def _finish(made: Path, target: Path) -> None:
    if not any(made.iterdir()):
        raise CheckpointError(
            f"{EXPORT_ATTRIBUTE} has written nothing; write files to the directory that it gets."
        )
    try:
        made.rename(target)
    except OSError as cause:
        raise CheckpointError(f"The model cannot be written to {target}: {cause}.") from cause


def _refusal(study: Study) -> str:
    return (
        f"The trainable of study {study.name!r} exports no model. Give its class a method "
        "export_model(self, directory), or its function an attribute export_model, a function of "
        "(config, checkpoint, directory). `studydb export-checkpoint` copies what a trial has "
        "saved."
    )
