"""What one search of `scripts/bench schedulers` has found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """
    The outcome of one search.

    Attributes:
        best: The least last error of the trials that were trained to their end.
        n_epochs: The epochs that were trained, with those that were lost in kills.
        n_beyond: The epochs that were trained after a decision to end or pause their trial.
        n_kills: How many workers were killed.
        simulated: What simulated workers find with the same curves; None for a simulation.
    """

    best: float
    n_trials: int
    n_complete: int
    n_epochs: int
    n_beyond: int
    n_kills: int = 0
    simulated: float | None = None
