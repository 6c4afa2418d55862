"""Suggestions of known names that are similar to a name that does not exist."""

import difflib
from collections.abc import Iterable

MOST_SUGGESTED = 3

LEAST_BEGINNING = 3
"""How many characters a wrong name has at least to be taken for the beginning of a known name."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Suggest up to three known names that are similar to a wrong name, for the end of a message.

    Upper and lower case count as equal, because "asha" for "ASHA" is the usual mistake. If the
    wrong name has at least `LEAST_BEGINNING` characters and is the beginning of known names
    ("grace" of "grace_period"), only these are suggested.

    Returns:
        " Did you mean 'a' or 'b'?" with the leading space, or "" if no name is similar.
    """
    by_fold = {other.casefold(): other for other in known}
    wrong = name.casefold()
    longer = [fold for fold in by_fold if fold.startswith(wrong) and len(wrong) >= LEAST_BEGINNING]
    folds = longer[:MOST_SUGGESTED] or difflib.get_close_matches(wrong, by_fold, MOST_SUGGESTED)
    if not folds:
        return ""
    return f" Did you mean {' or '.join(repr(by_fold[fold]) for fold in folds)}?"
