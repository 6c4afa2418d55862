"""Decide whether a worker may run a trainable, by its signature or its name."""

from collections.abc import Collection
from enum import Enum, auto

from msgspec import structs

from studydb.domain.errors import Untrusted
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.settings import Keyring, frame
from studydb.trainables.describing import IMPORT_PATH


class Trust(Enum):
    """Why a trainable may run; an ALLOWED trainable has no valid signature."""

    SIGNED = auto()
    ALLOWED = auto()


def signed_payload(trainable: Trainable, study_uuid: str) -> bytes:
    """Return the bytes that a signature covers: the study, and all fields that decide what runs."""
    return frame(
        f"studydb {trainable.role} 1",
        study_uuid,
        trainable.uuid,
        trainable.kind,
        trainable.name,
        trainable.workdir,
        trainable.source or b"",
    )


def sign(trainable: Trainable, study_uuid: str, keyring: Keyring) -> Trainable:
    """Copy a trainable, and sign the copy with the keyring's first key; other signatures stay."""
    key_id, mac = keyring.sign(signed_payload(trainable, study_uuid))
    return structs.replace(trainable, signatures={**trainable.signatures, key_id: mac})


def check_trusted(
    trainable: Trainable,
    study_uuid: str,
    keyring: Keyring,
    allow_imports: Collection[str] = (),
) -> Trust:
    """
    Decide whether this worker may run a trainable.

    Being able to write to the database must not be enough to run code on a worker.

    Args:
        allow_imports: The values of `--allow-import`: packages, modules, or `module:function`.

    Raises:
        Untrusted: No key of this user signed the trainable, and `allow_imports` does not allow it.
    """
    if keyring.verify(signed_payload(trainable, study_uuid), trainable.signatures):
        return Trust.SIGNED
    if trainable.kind == TrainableKind.IMPORT and _is_allowed(trainable.name, allow_imports):
        return Trust.ALLOWED
    raise Untrusted(_refusal(trainable, keyring))


def _is_allowed(name: str, allow_imports: Collection[str]) -> bool:
    """Whether `allow_imports` covers an import path; `module:Class.method` is never allowed."""
    match = IMPORT_PATH.fullmatch(name)
    if match is None or "." in match["attribute"]:
        return False
    module = match["module"]
    return any(
        prefix and (prefix in {name, module} or module.startswith(f"{prefix}."))
        for prefix in allow_imports
    )


def _refusal(trainable: Trainable, keyring: Keyring) -> str:
    if keyring.holds(trainable.signatures):
        return (
            f"The {trainable.noun} {trainable.name!r} was changed after it was signed. "
            "Find out who wrote to the database, and create the study again."
        )
    allow = ""
    if trainable.kind == TrainableKind.IMPORT and (match := IMPORT_PATH.fullmatch(trainable.name)):
        allow = f", or start the worker with --allow-import {match['module']}"
    return (
        f"The {trainable.noun} {trainable.name!r} is not signed by a key in {keyring.path}. "
        "Copy the keys of the account that created the study (from its key file) to that file"
        f"{allow}."
    )
