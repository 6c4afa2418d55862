"""
Signatures of checkpoints.

Opening a checkpoint can run code: a dict is stored as a pickle, and most libraries load the models
in a directory with pickle. So only a checkpoint with a valid signature is fetched.
"""

from msgspec import structs

from studydb.artifacts.checkpoint_records import Saved
from studydb.domain.checkpoint import Checkpoint, CheckpointKind
from studydb.domain.trainable import Trainable
from studydb.settings import Keyring, frame


def checkpoint_payload(checkpoint: Checkpoint, *, trial_uuid: str) -> bytes:
    """Return the bytes that a checkpoint's signature covers."""
    attempt, step = str(checkpoint.attempt), str(checkpoint.step)
    kind, digest = checkpoint.kind, checkpoint.digest
    return frame("studydb checkpoint 2", kind, trial_uuid, attempt, step, digest)


def sign_checkpoint(
    keyring: Keyring,
    saved: Saved,
    trainable: Trainable | None,
    *,
    trial_uuid: str,
    trial_id: int,
    attempt: int,
) -> Checkpoint:
    """
    Return the signed row of a checkpoint that an attempt saved, or a person uploaded (attempt 0).

    Args:
        trainable: The study's trainable. A key that signed it is preferred, because other workers
            of the study usually have this key.
        trial_id: The trial's id; 0 if the trial has no row yet.

    Raises:
        UsageError: The keyring has no key.
    """
    row = Checkpoint(
        uuid=saved.uuid,
        trial_id=trial_id,
        attempt=attempt,
        step=saved.step,
        kind=saved.kind,
        url=saved.url,
        digest=saved.digest,
        size_bytes=saved.size_bytes,
    )
    payload = checkpoint_payload(row, trial_uuid=trial_uuid)
    key_id, mac = keyring.sign(payload, prefer=trainable.signatures if trainable else ())
    return structs.replace(row, key_id=key_id, mac=mac)


def is_signed(keyring: Keyring, checkpoint: Checkpoint, *, trial_uuid: str) -> bool:
    """
    Whether a key of this user signed a checkpoint of this kind, for this trial, attempt and step.

    The first version of the payload did not contain the kind. That version is accepted only for a
    dict. If it were accepted for a directory, a changed row could pass off the signed pickle of a
    dict as the archive of a directory.
    """
    payload = checkpoint_payload(checkpoint, trial_uuid=trial_uuid)
    signatures = {checkpoint.key_id or "": checkpoint.mac or ""}
    if keyring.verify(payload, signatures):
        return True
    attempt, step = str(checkpoint.attempt), str(checkpoint.step)
    first = frame("studydb checkpoint 1", trial_uuid, attempt, step, checkpoint.digest)
    return checkpoint.kind == CheckpointKind.DICT and keyring.verify(first, signatures)
