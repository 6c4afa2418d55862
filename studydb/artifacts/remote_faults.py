"""Errors of remote stores: which errors are transient, retries of calls, texts for messages."""

import errno
from collections.abc import Callable
from typing import TypeVar

import tenacity

from studydb.domain.errors import StudydbError

WRITE_PATIENCE_S = 60.0
"""
For how long a save or a removal repeats a call. The time is short: training may wait for a save.
"""

READ_PATIENCE_S = 300.0
"""
For how long a read repeats a call. If a call of a restore still fails after that, the worker claims
no more trials.
"""

FIRST_WAIT_S, LONGEST_WAIT_S, JITTER_S = 0.2, 10.0, 0.2

Answered = TypeVar("Answered")

_FINAL = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    StudydbError,
    TypeError,
    ValueError,
)
_FINAL_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EINVAL)
_ABOUT_CREDENTIALS = ("credential", "token", "authentication", "login", "profile")


def retry_transient(call: Callable[[], Answered], *, patience_s: float) -> Answered:
    """
    Repeat a call to a store while it fails for a reason that may pass, such as a cut connection.

    The libraries have tried each request several times before they raise.

    Raises:
        Exception: The last error, after `patience_s`; an error that will not pass is raised
            immediately.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_transient),
        stop=tenacity.stop_after_delay(patience_s),
        wait=tenacity.wait_exponential_jitter(
            multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S, jitter=JITTER_S
        ),
        reraise=True,
    )
    return retrying(call)


def is_transient(error: BaseException) -> bool:
    """
    Whether a later try may succeed.

    Each library has its own exceptions. So a call is tried again after every exception, except
    after those that are known to be permanent.
    """
    if not isinstance(error, Exception) or isinstance(error, _FINAL) or is_of_credentials(error):
        return False
    return getattr(error, "errno", None) not in _FINAL_NUMBERS


def is_of_credentials(error: BaseException) -> bool:
    """Whether an error says that a host lacks credentials, or that the store has refused them."""
    name = type(error).__name__.lower()
    return isinstance(error, PermissionError) or any(word in name for word in _ABOUT_CREDENTIALS)


def described(error: BaseException) -> str:
    """Return an error's text without dots at its end; the name of its class if it has no text."""
    return str(error).strip().rstrip(".") or type(error).__name__
