"""Near names: what somebody probably meant by a name that is not there."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """
    The known names nearest to a wrong one, for the end of an error's message.

    Upper and lower case count as equal, because "asha" for "ASHA" is the usual slip.

    Args:
        name: What was written.
        known: What could have been; the order breaks ties.
        limit: How many names to suggest at most.

    Returns:
        " Did you mean 'a' or 'b'?" with the leading space, or "" when nothing is near.
    """
    by_fold = {other.casefold(): other for other in known}
    folds = difflib.get_close_matches(name.casefold(), by_fold, n=limit)
    if not folds:
        return ""
    return f" Did you mean {' or '.join(repr(by_fold[fold]) for fold in folds)}?"
