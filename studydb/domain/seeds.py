"""Seeds of trials, and random numbers that are computed without NumPy."""

import hashlib


def trial_seed(study_seed: int, number: int) -> int:
    """Return the seed of a trial, in [0, 2**32); it is the same for all attempts of the trial."""
    digest = hashlib.sha256(f"{study_seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def unit_number(study_seed: int, purpose: str, draw: int) -> float:
    """Return the random number in [0, 1) of one draw, for a purpose such as "bracket"."""
    digest = hashlib.sha256(f"{study_seed}/{purpose}/{draw}".encode()).digest()
    return int.from_bytes(digest[:8], "big") // 2**11 * 2.0**-53
