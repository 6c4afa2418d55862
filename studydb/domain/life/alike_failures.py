"""Find failures that are alike: a study pauses itself if its first trials fail alike."""

import re

from studydb.domain.failures import Failure, short_type

MAX_ALIKE = 5
"""
A study with the setting `guard` pauses itself once this many trials have failed alike, if no trial
has reported a result.
"""

_PLACE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+)', re.MULTILINE)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_LONGEST = 500


def fingerprint(failure: Failure) -> str:
    """
    Describe a failure by its type and the line that raised it; alike failures have equal texts.

    Without a traceback the text holds the message instead of the line. Each number in the message,
    with its sign, fraction and exponent, is replaced by 0, because such numbers often come from the
    trial's parameters.
    """
    place = last_place(failure)
    if place is not None:
        file, line = place
        return f"{failure.type} at {file}:{line}"[-_LONGEST:]
    return f"{failure.type}: {_NUMBER.sub('0', failure.message)}"[:_LONGEST]


def last_place(failure: Failure) -> tuple[str, str] | None:
    """Return the file and number of the line that raised the error; None if no line is known."""
    places: list[tuple[str, str]] = _PLACE.findall(failure.traceback)
    return places[-1] if places else None


def pause_reason(failure: Failure, n_trials: int) -> str:
    """Write why a study paused itself."""
    return f"{n_trials} trials failed alike and no trial has ever reported: {short_text(failure)}"


def short_text(failure: Failure) -> str:
    """Write the type without its module, and the message in one line."""
    message = " ".join(failure.message.split())[:_LONGEST]
    return f"{short_type(failure.type)}: {message}"
