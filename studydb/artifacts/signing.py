"""What is signed of a checkpoint: a dict is a pickle, and opening one runs code."""

from studydb.settings import frame


def checkpoint_payload(*, trial_uuid: str, attempt: int, step: int, digest: str) -> bytes:
    """
    The bytes that a checkpoint's signature covers.

    Sign them with a key that the study's other workers have too: `Keyring.sign(…, prefer=the
    trainable's signatures)`.
    """
    return frame("studydb checkpoint 1", trial_uuid, str(attempt), str(step), digest)
