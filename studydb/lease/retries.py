"""Retry calls until the database answers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import tenacity

from studydb.domain.errors import StorageTransient

PATIENCE_S = 900.0
"""How long calls are repeated while the database is away, unless the caller gives another time."""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER_S = 0.05, 5.0, 0.2

OUTAGE_S = 2.0
"""A wait for the database that is longer than this is told to a person."""

Answered = TypeVar("Answered")


def never() -> bool:
    """Return False; the default of `give_up`."""
    return False


def ignore(fault: StorageTransient) -> None:
    """Do nothing; the default of `on_outage`."""


def retry_until_answered(
    call: Callable[[], Answered],
    *,
    patience_s: float = PATIENCE_S,
    give_up: Callable[[], bool] = never,
    on_outage: Callable[[StorageTransient], None] = ignore,
) -> Answered:
    """
    Repeat a call until it returns. This is safe, because every operation may be sent again.

    Args:
        patience_s: The seconds after which the last try begins; 0 for a single try.
        give_up: Called after each fault; if it returns True, the fault is raised.
        on_outage: Called after each fault from `OUTAGE_S` on, with the fault.

    Raises:
        StorageTransient: The last fault, after `patience_s` or when `give_up` returned True.
    """
    began_s = time.monotonic()
    ends_s = began_s + patience_s
    try:
        return call()
    except StorageTransient:
        if time.monotonic() >= ends_s or give_up():
            raise

    def is_retried(error: BaseException) -> bool:
        return isinstance(error, StorageTransient) and not give_up()

    longer_each_time = tenacity.wait_exponential_jitter(
        multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S, jitter=JITTER_S
    )

    def wait_s(state: tenacity.RetryCallState) -> float:
        if time.monotonic() >= began_s + OUTAGE_S and state.outcome is not None:
            fault = state.outcome.exception()
            assert isinstance(fault, StorageTransient)
            on_outage(fault)
        return max(0.0, min(longer_each_time(state), ends_s - time.monotonic()))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_retried),
        stop=lambda _: time.monotonic() >= ends_s,
        wait=wait_s,
        reraise=True,
    )
    return retrying(call)


def retry_until(deadline: float | None, call: Callable[[], Answered]) -> Answered:
    """
    Repeat a call until it returns, up to a time by the monotonic clock.

    Raises:
        TimeoutError: The database did not answer before the deadline, or for `PATIENCE_S`.
        StorageTransient: There is no deadline, and the database did not answer for `PATIENCE_S`.
    """
    if deadline is None:
        return retry_until_answered(call)
    try:
        return retry_until_answered(call, patience_s=min(PATIENCE_S, deadline - time.monotonic()))
    except StorageTransient as error:
        raise TimeoutError(f"The database did not answer in time. {error}") from error


@contextmanager
def locked_until(lock: "threading.RLock", deadline: float | None) -> Iterator[None]:
    """
    Hold a lock that other threads may hold for long.

    Args:
        lock: A reentrant lock. Ctrl-C can come before `acquire` has returned; only a reentrant lock
            then knows whether this thread holds it.
        deadline: The time by the monotonic clock up to which to wait; None to wait without end.

    Raises:
        TimeoutError: Another thread held the lock until the deadline.
    """
    left_s = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
    try:
        if not lock.acquire(timeout=min(max(0.0, left_s), threading.TIMEOUT_MAX)):
            raise TimeoutError("Another thread of this process was asking until the timeout.")
        yield
    finally:
        with suppress(RuntimeError):  # this thread does not hold it
            lock.release()
