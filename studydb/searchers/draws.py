"""Counter-based random numbers: a draw is a pure function of (study seed, path, number)."""

import hashlib
from functools import lru_cache
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.space.bounds import is_integral

_WORD = 2**64
_LARGEST_SEED = 2**63 - 1

BLOCK_DRAWS = 256


def unit_draw(*, seed: int, path: str, draw: int) -> float:
    """
    The number in [0, 1) that a parameter gets at one draw.

    Every parameter has a stream of its own, keyed by its path: adding one to the space leaves the
    others' values as they were. Only Philox's raw words are used, which numpy never changes; its
    distributions it may.

    Args:
        seed: The study's; taken modulo 2**64.
        path: "model/width".
        draw: 0-based, below 2**256.

    Returns:
        A multiple of 2**-53.
    """
    block, place = divmod(draw, BLOCK_DRAWS)
    return _block(seed % _WORD | _path_key(path) << 64, block)[place]


@lru_cache(maxsize=256)
def _block(key: int, block: int) -> list[float]:
    """Some draws in a row: to start Philox costs more than to go on."""
    from numpy.random import Philox  # noqa: PLC0415  not for commands that only look

    words = Philox(key=key, counter=block * BLOCK_DRAWS).random_raw(4 * BLOCK_DRAWS)[::4]
    draws: list[float] = ((words >> 11) * 2.0**-53).tolist()
    return draws


@lru_cache(maxsize=4096)
def _path_key(path: str) -> int:
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "little")


def check_seed(seed: Any, *, of: str) -> int | None:
    """
    Check a searcher's seed.

    Raises:
        InvalidSpec: It is neither None nor an integer that fits into a column.
    """
    if seed is None:
        return None
    seed = seed.item() if getattr(seed, "ndim", None) == 0 else seed
    if not is_integral(seed) or not 0 <= seed <= _LARGEST_SEED:
        raise InvalidSpec(
            f"The seed of {of} is {seed!r}; give an integer from 0 to 2**63 - 1, or None for any."
        )
    return int(seed)
