"""Suggestions of known names that are similar to a name that does not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Suggest up to three known names that are similar to a wrong name, for the end of a message.

    Upper and lower case count as equal, because "asha" for "ASHA" is the usual mistake.

    Returns:
        " Did you mean 'a' or 'b'?" with the leading space, or "" if no name is similar.
    """
    by_fold = {other.casefold(): other for other in known}
    folds = difflib.get_close_matches(name.casefold(), by_fold)
    if not folds:
        return ""
    return f" Did you mean {' or '.join(repr(by_fold[fold]) for fold in folds)}?"
