"""
Where a trial can be, and how it may move: the one table that all else is made from.

```
            claim                        finish: completed, stopped by scheduler, rule or person
 PENDING ─────────────▶ RUNNING ─────────────────────────────────────────▶ TERMINATED
    ▲  ▲                │ │ │ └─ exploit: next attempt under the same lease (RUNNING)
    │  └─ released,     │ │ └──▶ PAUSED ──▶ TERMINATED (cut, or a person)
    │     lost, retried ┘ │         │
    │                     └──▶ ERROR│ (failures or losses spent)
    └──────── promoted, resumed ────┘
```
"""

from enum import StrEnum


class State(StrEnum):
    """Where a trial is. TERMINATED and ERROR are final: their rows never change again."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"


MOVES: dict[tuple[State, State], str] = {
    (State.PENDING, State.RUNNING): "claim",
    (State.PENDING, State.PAUSED): "pause by a person",
    (State.PENDING, State.TERMINATED): "stop by a person",
    (State.RUNNING, State.RUNNING): "exploit",
    (State.RUNNING, State.PENDING): "release, loss or retry",
    (State.RUNNING, State.PAUSED): "verdict: pause",
    (State.RUNNING, State.TERMINATED): "finish",
    (State.RUNNING, State.ERROR): "failures or losses spent",
    (State.PAUSED, State.PENDING): "promote or resume",
    (State.PAUSED, State.TERMINATED): "cut, or stop by a person",
}
"""Every allowed move with what makes it; a pair that is not here never happens."""

FINAL = frozenset(state for state in State if not any(source is state for source, _ in MOVES))


def sources(target: State) -> frozenset[State]:
    """The states from which a trial may move to `target`: the guard of that move's WHERE."""
    return frozenset(source for source, destination in MOVES if destination is target)


class Reason(StrEnum):
    """Why an attempt or a trial ended; a column of its own, beside the state."""

    COMPLETED = "COMPLETED"
    EARLY_STOPPED = "EARLY_STOPPED"
    RULE_STOPPED = "RULE_STOPPED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    LOST = "LOST"
    PREEMPTED = "PREEMPTED"
    TIMED_OUT = "TIMED_OUT"
    EXPLOITED = "EXPLOITED"
    PAUSED = "PAUSED"


class Status(StrEnum):
    """
    What a study does.

    FINISHED is never stored: it is RUNNING with its budget spent and nothing PENDING or RUNNING.
    """

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"


class Origin(StrEnum):
    """Where a trial's parameters come from."""

    SEARCHER = "searcher"
    ENQUEUED = "enqueued"
    GRID = "grid"
    CLONE = "clone"
    REPLICATE = "replicate"


class Mode(StrEnum):
    """Whether a smaller or a larger value of the study's metric is better."""

    MIN = "min"
    MAX = "max"
