"""Seeds of trials."""

import hashlib


def trial_seed(study_seed: int, number: int) -> int:
    """Return the seed of a trial, in [0, 2**32); it is the same for all attempts of the trial."""
    digest = hashlib.sha256(f"{study_seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
