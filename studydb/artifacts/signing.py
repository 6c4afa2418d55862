"""
Signatures of checkpoints, of both kinds.

Opening a checkpoint can run code: a dict is stored as a pickle, and most libraries load the models
in a directory with pickle.
"""

from typing import Any

from studydb.domain.records import Checkpoint, CheckpointKind
from studydb.settings import Keyring, frame


def checkpoint_payload(
    *, kind: str, trial_uuid: str, attempt: int, step: int, digest: str
) -> bytes:
    """
    Return the bytes that a checkpoint's signature covers.

    Sign them with a key that the study's other workers have, too: `Keyring.sign(…, prefer=the
    trainable's signatures)`.
    """
    return frame("studydb checkpoint 2", kind, trial_uuid, str(attempt), str(step), digest)


def is_signed(keyring: Keyring, checkpoint: Checkpoint, *, trial_uuid: str) -> bool:
    """
    Whether a key of this user signed a checkpoint of this kind, for this trial and step.

    The first version of the payload did not contain the kind. It is still accepted for a dict, but
    not for a directory: the bytes of a dict's pickle could be a valid archive, too.
    """
    signed: dict[str, Any] = {
        "trial_uuid": trial_uuid,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "digest": checkpoint.digest,
    }
    signatures = {checkpoint.key_id or "": checkpoint.mac or ""}
    if keyring.verify(checkpoint_payload(kind=checkpoint.kind, **signed), signatures):
        return True
    return checkpoint.kind == CheckpointKind.DICT and keyring.verify(
        _first_payload(**signed), signatures
    )


def _first_payload(*, trial_uuid: str, attempt: int, step: int, digest: str) -> bytes:
    return frame("studydb checkpoint 1", trial_uuid, str(attempt), str(step), digest)
