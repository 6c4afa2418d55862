"""How a study's trials end and how fast, in words."""

from datetime import datetime
from typing import Any

from studydb.domain.text.display import duration_text

_BRIEF_S = 10
"""Below it tenths are told: 0 s with a rate beside it reads like a mistake."""


def ends_text(pace: Any) -> str | None:
    """How the newest trials ended, as in "12 completed, 30 stopped early"; None for no end."""
    counts = ((pace.completed, "completed"), (pace.stopped_early, "stopped early"))
    parts = [f"{count} {how}" for count, how in (*counts, (pace.cancelled, "cancelled")) if count]
    return ", ".join(parts) or None


def pace_text(pace: Any, *, now: datetime, left: int | None, runs: bool) -> str | None:
    """
    Elapsed time, rate and time left, as in "3 min 5 s, 9.7 trials/min, about 4 min 0 s left".

    Args:
        left: Trials that the budget still has; None for endless.
        runs: Whether workers are at it; else the time ends with the last trial.
    """
    if pace.began_at is None:
        return None
    until = now if runs or pace.last_end_at is None else pace.last_end_at
    elapsed_s = max((until - pace.began_at).total_seconds(), 0.001)
    parts = [f"{elapsed_s:.1f} s" if elapsed_s < _BRIEF_S else duration_text(elapsed_s)]
    if pace.ended:
        per_s = pace.ended / elapsed_s
        parts.append(f"{per_s:.3g} trials/s" if per_s >= 1 else f"{60 * per_s:.3g} trials/min")
        if runs and left:
            parts.append(f"about {duration_text(left / per_s)} left")
    return ", ".join(parts)
