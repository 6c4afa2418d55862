"""Seeds of trials."""

import hashlib


def trial_seed(study_seed: int, number: int) -> int:
    """A seed in [0, 2**32) for the user's random numbers: the same for every attempt of a trial."""
    digest = hashlib.sha256(f"{study_seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
