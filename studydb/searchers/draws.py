"""Counter-based random numbers: a draw is a pure function of (study seed, path, number)."""

import hashlib
from functools import lru_cache

_WORD = 2**64

BLOCK_DRAWS = 256


def unit_draw(*, seed: int, path: str, draw: int) -> float:
    """
    The number in [0, 1) that a parameter gets at one draw.

    The stream of a parameter depends on its path alone: a new parameter in the space does not
    change the values of the others. Only the raw words of Philox are used, which numpy never
    changes; it may change its distributions.

    Args:
        seed: The study's; taken modulo 2**64.
        path: "model/width".
        draw: 0-based, below 2**256.

    Returns:
        A multiple of 2**-53.
    """
    block, index = divmod(draw, BLOCK_DRAWS)
    return _draws_of(seed % _WORD | _path_key(path) << 64, block)[index]


@lru_cache(maxsize=256)
def _draws_of(key: int, block: int) -> list[float]:
    """A block of consecutive draws: starting Philox costs more than a draw."""
    from numpy.random import Philox  # noqa: PLC0415  not for commands that only look

    words = Philox(key=key, counter=block * BLOCK_DRAWS).random_raw(4 * BLOCK_DRAWS)[::4]
    draws: list[float] = ((words >> 11) * 2.0**-53).tolist()
    return draws


@lru_cache(maxsize=4096)
def _path_key(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "little")
