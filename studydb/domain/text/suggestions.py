"""Suggestions of known names that are similar to a name that does not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """
    Suggest the known names that are most similar to a wrong one, for the end of an error's message.

    Upper and lower case count as equal, because "asha" for "ASHA" is the usual mistake.

    Args:
        known: The existing names; of equally similar names the first is suggested first.
        limit: The largest number of suggestions.

    Returns:
        " Did you mean 'a' or 'b'?" with the leading space, or "" if no name is similar.
    """
    by_fold = {other.casefold(): other for other in known}
    folds = difflib.get_close_matches(name.casefold(), by_fold, n=limit)
    if not folds:
        return ""
    return f" Did you mean {' or '.join(repr(by_fold[fold]) for fold in folds)}?"
