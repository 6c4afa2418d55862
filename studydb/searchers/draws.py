"""Counter-based random numbers: each number is a pure function of (study seed, path, draw)."""

import hashlib
from functools import lru_cache

BLOCK_DRAWS = 256


def unit_draw(*, seed: int, path: str, draw: int) -> float:
    """
    Return the random number in [0, 1) of one parameter for one draw.

    The number depends on no other parameter. So if a space gets a new parameter, the values of its
    other parameters stay the same. The numbers are made of the raw words of NumPy's generator
    Philox. NumPy never changes these words, but may change its distributions.

    Args:
        seed: The seed stored with the study; it is taken modulo 2**64.
        path: The parameter's path, such as "model/width".
        draw: The draw, an integer from 0 to 2**256 - 1.

    Returns:
        A multiple of 2**-53.
    """
    block, index = divmod(draw, BLOCK_DRAWS)
    return _draws_of(seed % 2**64 | _path_key(path) << 64, block)[index]


@lru_cache(maxsize=256)
def _draws_of(key: int, block: int) -> list[float]:
    """Compute the numbers of a block of draws; starting Philox for each draw would cost more."""
    from numpy.random import Philox  # noqa: PLC0415  most commands need no numpy

    words = Philox(key=key, counter=block * BLOCK_DRAWS).random_raw(4 * BLOCK_DRAWS)[::4]
    draws: list[float] = ((words >> 11) * 2.0**-53).tolist()
    return draws


@lru_cache(maxsize=4096)
def _path_key(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "little")
