"""Define a study like an existing one, under a new name."""

from dataclasses import fields
from uuid import uuid4

from msgspec import structs

from studydb.artifacts import INLINE
from studydb.domain.errors import NotAllowed, Untrusted
from studydb.domain.records import NewStudy
from studydb.domain.records import Study as Record
from studydb.domain.text.names import check_new_study_name
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.settings import Keyring, load_keyring
from studydb.study.storage import whoami
from studydb.trainables import check_trusted, sign
from studydb.trainables.bound_parameters import BoundSource


def cloned(study: Record, new_name: str) -> NewStudy:
    """
    Define a study like another, without trials, and sign its code with the caller's key.

    Raises:
        InvalidName: The name breaks a rule for names.
        NotAllowed: No key of the caller has signed the code, or the code has bound objects whose
            bytes are in a store, not in the database.
    """
    uuid = str(uuid4())
    given = {each.name: getattr(study, each.name) for each in fields(NewStudy)}
    trainable = study.trainable and _signed(study, study.trainable, uuid, load_keyring())
    own = {"uuid": uuid, "name": check_new_study_name(new_name), "created_by": whoami()}
    rules = tuple(_signed(study, each, uuid, load_keyring()) for each in study.rule_code)
    scheduler = study.scheduler_code and _signed(study, study.scheduler_code, uuid, load_keyring())
    requests = study.request_code and _signed(study, study.request_code, uuid, load_keyring())
    code = {
        "trainable": trainable,
        "rule_code": rules,
        "scheduler_code": scheduler,
        "request_code": requests,
    }
    return NewStudy(**(given | own | code))


def _signed(study: Record, old: Trainable, uuid: str, keyring: Keyring) -> Trainable:
    try:
        check_trusted(old, study.uuid, keyring)
    except Untrusted as cause:
        raise NotAllowed(
            f"Study {study.name!r} runs code that you have not signed, so the clone cannot run it. "
            f"{cause} Or create the study from your own copy of the code."
        ) from cause
    bound = BoundSource.read(old).parameters if old.kind == TrainableKind.BOUND else {}
    if any(one.url != INLINE for one in bound.values()):
        raise NotAllowed(
            f"Objects are bound to the code of study {study.name!r}, and their bytes belong to "
            "that study. Create the new study from your program, by studydb.with_parameters."
        )
    return sign(structs.replace(old, uuid=str(uuid4()), signatures={}), uuid, keyring)
