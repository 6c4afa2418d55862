"""
The states of a trial and the allowed moves (`MOVES`).

No scheduler makes the move "exploit" yet. The diagram leaves out that a person can pause, stop or
invalidate a PENDING trial.

```
            claim                        finish: completed, or stopped by a verdict
 PENDING ─────────────▶ RUNNING ─────────────────────────────────────────▶ TERMINATED
    ▲  ▲                │ │ │ └─ exploit: next attempt under the same lease (RUNNING)
    │  └─ released,     │ │ └──▶ PAUSED ──▶ TERMINATED (given up by the scheduler,
    │     lost, retried ┘ │         │                   or ended by a person)
    │                     └──▶ ERROR│ (failed or lost, without a retry)
    └──────── promoted, resumed ────┘
```
"""

from enum import StrEnum


class State(StrEnum):
    """The state of a trial. A trial that is TERMINATED or ERROR never changes its state."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"


MOVES: dict[tuple[State, State], str] = {
    (State.PENDING, State.RUNNING): "claim",
    (State.PENDING, State.PAUSED): "pause by a person",
    (State.PENDING, State.TERMINATED): "stop or invalidation by a person",
    (State.RUNNING, State.RUNNING): "exploit",
    (State.RUNNING, State.PENDING): "release, or retry after a failed or lost attempt",
    (State.RUNNING, State.PAUSED): "verdict: pause",
    (State.RUNNING, State.TERMINATED): "finish",
    (State.RUNNING, State.ERROR): "a failed or lost attempt without a retry",
    (State.PAUSED, State.PENDING): "promote or resume",
    (State.PAUSED, State.TERMINATED): "given up by the scheduler; stop or invalidation by a person",
}
"""The cause of each allowed move, by the states before and after the move."""

FINAL = frozenset(state for state in State if not any(source is state for source, _ in MOVES))


def sources(target: State) -> frozenset[State]:
    """Return the states from which a trial may move to `target`."""
    return frozenset(source for source, destination in MOVES if destination is target)


class Reason(StrEnum):
    """Why an attempt or a trial ended. EXPLOITED and OUT_OF_MEMORY are not used yet."""

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
    GIVEN_UP = "GIVEN_UP"
    BUDGET_SPENT = "BUDGET_SPENT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INVALIDATED = "INVALIDATED"


class Status(StrEnum):
    """
    The status of a study.

    FINISHED and SPENT are never stored. A study is FINISHED if five conditions hold:

    - The stored status is RUNNING.
    - No new trial can start, because the budget is spent or the scheduler starts no more trials.
    - No trial is PENDING or RUNNING.
    - The scheduler has no work for a free worker: no trial to promote or give up, no rung to close.
    - No trial waits to be resumed together with the study.
    """

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    SPENT = "SPENT"
    """
    A limit or a stop rule has stopped the study. The study's row stores STOPPED; the study's
    RUNNING trials read SPENT instead, and obey it.
    """


class Origin(StrEnum):
    """Where a trial's parameters come from. REPLICATE, EVALUATED and FOREIGN are not used yet."""

    SEARCHER = "searcher"
    ENQUEUED = "enqueued"
    GRID = "grid"
    CLONE = "clone"
    REPLICATE = "replicate"
    BY_INDEX = "by index"
    """
    The searcher chose the parameters by index, because its model gave no new point.

    The model failed, was too slow, or gave only points that the study has.
    """
    EVALUATED = "evaluated"
    """The user gave parameters and value; studydb does not run the trial."""
    FOREIGN = "foreign"
    """The parameters come from another tool, which uses studydb as its storage."""


class Mode(StrEnum):
    """Whether a smaller or a larger value of the study's metric is better."""

    MIN = "min"
    MAX = "max"
