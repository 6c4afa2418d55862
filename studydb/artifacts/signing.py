"""
Signatures of checkpoints.

Opening a checkpoint can run code: a dict is stored as a pickle, and most libraries load the models
in a directory with pickle.
"""

from studydb.domain.records import Checkpoint, CheckpointKind
from studydb.settings import Keyring, frame


def checkpoint_payload(
    *, kind: str, trial_uuid: str, attempt: int, step: int, digest: str
) -> bytes:
    """
    Return the bytes that a checkpoint's signature covers.

    Sign these bytes by `Keyring.sign(…, prefer=the trainable's signatures)`: other workers of the
    study have the keys that signed the trainable.
    """
    return frame("studydb checkpoint 2", kind, trial_uuid, str(attempt), str(step), digest)


def is_signed(keyring: Keyring, checkpoint: Checkpoint, *, trial_uuid: str) -> bool:
    """
    Whether a key of this user signed a checkpoint of this kind, for this trial, attempt and step.

    The first version of the payload did not contain the kind. That version is accepted only for a
    dict. Otherwise a changed row could pass off the signed pickle of a dict as the archive of a
    directory.
    """
    payload = checkpoint_payload(
        kind=checkpoint.kind,
        trial_uuid=trial_uuid,
        attempt=checkpoint.attempt,
        step=checkpoint.step,
        digest=checkpoint.digest,
    )
    signatures = {checkpoint.key_id or "": checkpoint.mac or ""}
    if keyring.verify(payload, signatures):
        return True
    attempt, step = str(checkpoint.attempt), str(checkpoint.step)
    first = frame("studydb checkpoint 1", trial_uuid, attempt, step, checkpoint.digest)
    return checkpoint.kind == CheckpointKind.DICT and keyring.verify(first, signatures)
