"""Describe the code that a study runs, store the objects bound to it, and sign the description."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from studydb.artifacts import INLINE, digest_of, open_store, store_parameter
from studydb.domain.errors import CheckpointError
from studydb.domain.study_spec import StudySpec
from studydb.domain.trainable import Trainable
from studydb.settings import Keyring
from studydb.trainables import (
    Command,
    StoredParameter,
    WithParameters,
    describe,
    describe_with_parameters,
    sign,
)

Code = Callable[..., Any] | WithParameters | Command | Sequence[str] | str
"""
What trials run: a function or class, or a command.

A function or a `studydb.Trainable` class is given as an object, with or without bound parameters;
by its path ("module:name"); or by the name under which an installed package offers it (entry points
of `studydb.trainables`). A command is given as a list such as ["./train", "--lr", "{lr}"], or as a
`studydb.Command`.
"""


def described(code: Code, spec: StudySpec, *, workdir: Path) -> Trainable:
    """
    Check code and describe it, without a signature, and without the objects bound to the code.

    Args:
        spec: The study's space and objective, with which a command must agree.
        workdir: Workers look for the code in their own directory first, then in this one.

    Raises:
        InvalidSpec: A command does not agree with the space or the metric.
        TrainableError: Workers could not find or call the code.
    """
    if isinstance(code, Sequence) and not isinstance(code, str):
        code = Command(code)
    if isinstance(code, Command):
        code.check(spec.space, metric=spec.objective.metric, workdir=workdir)
        return code.describe(spec.space, workdir=workdir)
    if isinstance(code, WithParameters):
        return describe_with_parameters(code, workdir=workdir)
    return describe(code, workdir=workdir)


def signed(
    trainable: Trainable,
    code: Code,
    *,
    study_uuid: str,
    store: str,
    keyring: Keyring,
    make_folder: Callable[[str], None] | None = None,
) -> Trainable:
    """
    Store the objects that are bound to described code, and sign the description for a study.

    Args:
        store: The URL of the study's checkpoint store.
        make_folder: A function that makes the study's folder. It is called with `store` before each
            object is stored, unless `store` is "inline:". The function raises CheckpointError if
            this host does not see the directory in which other processes save the study's
            checkpoints. None for a new study: its folder is made without a check.

    Raises:
        TrainableError: An object cannot be pickled, or is too large for the database.
        CheckpointError: The store fails.
    """

    def keep(name: str, data: bytes) -> StoredParameter:
        if store == INLINE:
            return StoredParameter(INLINE, digest_of(data), len(data), data)
        try:
            make_folder(store) if make_folder else open_store(store).add_study(study_uuid)
            stored = store_parameter(store, study_uuid, data)
        except CheckpointError as error:
            cause = str(error.__cause__ or error).rstrip(".")
            raise CheckpointError(
                f"The parameter {name!r} could not be stored in {store}: {cause}. Make room "
                "there, or name another store that you may write to: checkpoints=URL."
            ) from error
        return StoredParameter(stored.url, stored.digest, stored.size_bytes)

    if isinstance(code, WithParameters):
        trainable = describe_with_parameters(code, workdir=trainable.workdir, store=keep)
    return sign(structs.replace(trainable, signatures={}), study_uuid, keyring)


def remove_objects(code: Code | None, *, study_uuid: str, store: str) -> None:
    """Remove the objects that were stored for a study that was not created."""
    if isinstance(code, WithParameters) and store != INLINE:
        with suppress(CheckpointError):
            open_store(store).delete_study(study_uuid)
            open_store(store).remove_folder(study_uuid)
