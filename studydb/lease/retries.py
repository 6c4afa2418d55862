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
"""After this many seconds without an answer, `on_outage` is called with each fault."""

Answered = TypeVar("Answered")


def never() -> bool:
    """Return False; the default of `give_up`."""
    return False


def ignore(fault: StorageTransient | None) -> None:
    """Do nothing; the default of `on_outage`."""


def retry_until_answered(
    call: Callable[[], Answered],
    *,
    patience_s: float = PATIENCE_S,
    give_up: Callable[[], bool] = never,
    on_outage: Callable[[StorageTransient | None], None] = ignore,
) -> Answered:
    """
    Repeat a call until it returns. This is safe, because every operation may be sent again.

    Args:
        patience_s: The seconds after which the last try begins; 0 for a single try.
        give_up: Called after each fault; if it returns True, the fault is raised.
        on_outage: Called with each fault after the first `OUTAGE_S`. If it was called, it is called
            with None once the database has answered.

    Raises:
        StorageTransient: The last fault, after `patience_s` or when `give_up` returned True.
    """
    outage = _Outage(on_outage)
    ends_s = time.monotonic() + patience_s
    try:
        return call()
    except StorageTransient as fault:
        if time.monotonic() >= ends_s or give_up():
            raise
        outage.note(fault)

    def is_retried(error: BaseException) -> bool:
        return isinstance(error, StorageTransient) and not give_up()

    longer_each_time = tenacity.wait_exponential_jitter(
        multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S, jitter=JITTER_S
    )

    def wait_s(state: tenacity.RetryCallState) -> float:
        outage.note(state.outcome.exception() if state.outcome else None)
        return max(0.0, min(longer_each_time(state), ends_s - time.monotonic()))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_retried),
        stop=lambda _: time.monotonic() >= ends_s,
        wait=wait_s,
        reraise=True,
    )
    with outage:
        return retrying(call)


class _Outage:
    """Calls `on_outage` as `retry_until_answered` says; the `with` block ends with the last try."""

    def __init__(self, on_outage: Callable[[StorageTransient | None], None]) -> None:
        self._on_outage, self._began_s = on_outage, time.monotonic()
        self._is_noted = False

    def note(self, fault: BaseException | None) -> None:
        is_long = time.monotonic() >= self._began_s + OUTAGE_S
        if isinstance(fault, StorageTransient) and is_long:
            self._is_noted = True
            self._on_outage(fault)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        has_answered = kind is None or not issubclass(kind, StorageTransient)
        if self._is_noted and has_answered:
            self._on_outage(None)


def retry_until(deadline: float | None, call: Callable[[], Answered]) -> Answered:
    """
    Repeat a call until it returns, up to a time by the monotonic clock.

    Raises:
        TimeoutError: There is a deadline, and the database answered neither before the deadline
            nor, if that is sooner, within `PATIENCE_S`.
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
        deadline: Until when to wait, by the monotonic clock; None to wait without end.

    Raises:
        TimeoutError: Another thread held the lock until the deadline.
    """
    left_s = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
    try:
        if not lock.acquire(timeout=min(max(0.0, left_s), threading.TIMEOUT_MAX)):
            raise TimeoutError(
                "Another thread of this process was in study.ask() until the timeout."
            )
        yield
    finally:
        with suppress(RuntimeError):  # this thread does not hold it
            lock.release()
