"""What one search of `scripts/bench schedulers` has found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """
    The outcome of one search.

    Attributes:
        best: The lowest final error of the trials that were trained to their end.
        n_epochs: The epochs that were trained, including those whose results a kill has lost.
        n_after_decision: The epochs that trials trained after the decision to end or pause them.
        n_kills: How many workers were killed.
        simulated: The `best` of simulated workers with the same curves; None if this search is
            itself a simulation.
    """

    best: float
    n_trials: int
    n_complete: int
    n_epochs: int
    n_after_decision: int
    n_kills: int = 0
    simulated: float | None = None
