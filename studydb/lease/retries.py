"""Making the same call again until the database answers."""

from collections.abc import Callable
from typing import TypeVar

import stamina

from studydb.domain.errors import StorageTransient

PATIENCE_S = 900.0
"""How long a worker goes on without its database before it gives up."""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER_S = 0.05, 5.0, 0.2

Answered = TypeVar("Answered")


def never() -> bool:
    """Nobody asks to give up early."""
    return False


def persist(
    call: Callable[[], Answered],
    *,
    patience_s: float = PATIENCE_S,
    give_up: Callable[[], bool] = never,
) -> Answered:
    """
    Make a call until it answers; safe because every operation may be sent again.

    Args:
        patience_s: Raise the last fault once so many seconds have passed; 0 for a single try.
        give_up: Asked after each fault; True raises it at once.

    Raises:
        StorageTransient: The fault did not pass in time.
    """
    if patience_s <= 0:
        return call()

    def passes(error: Exception) -> bool:
        return isinstance(error, StorageTransient) and not give_up()

    for attempt in stamina.retry_context(
        on=passes,
        attempts=None,
        timeout=patience_s,
        wait_initial=FIRST_WAIT_S,
        wait_max=LONGEST_WAIT_S,
        wait_jitter=JITTER_S,
    ):
        with attempt:
            return call()
    raise AssertionError("unreachable: the last attempt returns or raises")
