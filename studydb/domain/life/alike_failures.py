"""The guard against one's own bugs: when failures are alike, and how many pause their study."""

import re

from studydb.domain.records import Failure

MOST_ALIKE = 5
"""So many distinct trials that failed alike, none of the study ever having reported, pause it."""

GUARD = "guard"
"""Who has paused a study that paused itself: `study.paused_by`."""

_PLACE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+)', re.MULTILINE)
_NUMBER = re.compile(r"\d+")
_LONGEST = 500


def fingerprint(failure: Failure) -> str:
    """
    A text that is the same for failures that are alike: same type, raised at the same line.

    Where there is no traceback, by the message, whose numbers do not count: they tell of the
    trial's parameters.
    """
    places = _PLACE.findall(failure.traceback)
    if places:
        file, line = places[-1]
        return f"{failure.type} at {file}:{line}"[-_LONGEST:]
    return f"{failure.type}: {_NUMBER.sub('0', failure.message)}"[:_LONGEST]


def pause_reason(failure: Failure, n_trials: int) -> str:
    """Why a study pauses itself."""
    message = " ".join(failure.message.split())[:_LONGEST]
    return (
        f"{n_trials} trials failed alike and none has ever reported: "
        f"{failure.type.rpartition('.')[2]}: {message}"
    )
