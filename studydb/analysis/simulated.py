"""The outcome of a simulation, in which recorded curves stand for the training of trials."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from studydb.analysis.columns import Floats, Integers, Texts
from studydb.analysis.frames import ExpandedColumn, FrameBuilder
from studydb.domain.objective import Objective

if TYPE_CHECKING:
    import pandas as pd

STUDY = "simulation"
"""The name of the simulated study."""


class SimulatedTrial(NamedTuple):
    """
    A trial of a simulation.

    Attributes:
        curve: The index of the trial's curve among the recorded curves.
        params: The params that the searcher proposed; without a searcher, the params of the curve.
            Their keys are paths if the curves have a space.
        n_steps: How many steps it has trained, including steps that were trained again.
        last_step: The `training_iteration` of its last result; None without a result.
        value: Its last value; None without a result.
        began_s, ended_s: When its first attempt began and its last attempt ended, in simulated
            seconds since the start.
    """

    number: int
    curve: int
    params: Mapping[str, Any]
    state: str
    reason: str | None
    bracket: int
    n_steps: int
    last_step: int | None
    value: float | None
    began_s: float
    ended_s: float


class Completion(NamedTuple):
    """
    The moment at which a trial was fully trained.

    Attributes:
        time_s: The simulated seconds since the start.
        n_steps: How many steps all trials had trained by then.
        value: The trial's last value.
        best_value: The best of the last values of the trials that were fully trained by then.
        regret: How much worse `best_value` is than `Simulation.optimum`.
    """

    time_s: float
    n_steps: int
    number: int
    value: float
    best_value: float
    regret: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """
    What a scheduler and a searcher have found in recorded curves.

    A trial is fully trained if it has COMPLETED: either it has trained to its curve's end, or the
    scheduler has ended the trial because it had trained enough.

    Attributes:
        objective: The metric and the mode.
        status: The study's status at the end: FINISHED, or STOPPED at a limit. RUNNING means that
            the study was not done, but its workers found nothing more to do.
        trials: The trials, by number.
        completions: When trials were fully trained, in order of time.
        n_steps: How many steps (epochs) were trained in all.
        n_again: How many of the `n_steps` were trained again, because the trial had no checkpoint
            of these steps.
        n_after_decision: How many of the `n_steps` were trained although the scheduler had already
            decided to stop or pause the trial at an earlier step. Steps whose results were not
            stored count, too. A number above 0 would be a fault of studydb.
        n_judged: How many entries all rungs have together.
        n_kills: How many workers were killed.
        duration_s: The simulated seconds from the start to the last report.
        optimum: The best of the recorded curves' last values.
    """

    objective: Objective
    status: str
    trials: tuple[SimulatedTrial, ...]
    completions: tuple[Completion, ...]
    n_steps: int
    n_again: int
    n_after_decision: int
    n_judged: int
    n_kills: int
    duration_s: float
    optimum: float

    @property
    def best_value(self) -> float | None:
        """The best of the fully trained trials' last values; None if no trial was fully trained."""
        return self.completions[-1].best_value if self.completions else None

    @property
    def regret(self) -> float | None:
        """How much worse `best_value` is than `optimum`; None if no trial was fully trained."""
        return self.completions[-1].regret if self.completions else None

    def regret_at(self, time_s: float) -> float | None:
        """Return the regret at a simulated time; None before a trial was fully trained."""
        past = [one.regret for one in self.completions if one.time_s <= time_s]
        return past[-1] if past else None

    def trials_dataframe(self) -> "pd.DataFrame":
        """Return a row per trial: the fields of `SimulatedTrial`, and a column per parameter."""
        paths = dict.fromkeys(path for trial in self.trials for path in trial.params)
        frame = FrameBuilder(
            STUDY,
            {
                "number": Integers(),
                "curve": Integers(),
                "params": ExpandedColumn("param", [*paths]),
                "state": Texts(),
                "reason": Texts(),
                "bracket": Integers(),
                "n_steps": Integers(),
                "last_step": Integers(optional=True),
                "value": Floats(),
                "began_s": Floats(),
                "ended_s": Floats(),
            },
        )
        frame.extend(self.trials)
        return frame.finish()

    def completions_dataframe(self) -> "pd.DataFrame":
        """Return a row per `Completion`; the column `regret` never rises from row to row."""
        frame = FrameBuilder(
            STUDY,
            {
                "time_s": Floats(),
                "n_steps": Integers(),
                "number": Integers(),
                "value": Floats(),
                "best_value": Floats(),
                "regret": Floats(),
            },
        )
        frame.extend(self.completions)
        return frame.finish()

    def __repr__(self) -> str:
        best = "nothing fully trained"
        if self.best_value is not None:
            best = f"best {self.objective} {self.best_value:.6g}"
        return (
            f"<simulation: {best}; {len(self.trials)} trials, {self.n_steps} steps, "
            f"{self.duration_s:.6g} s, {self.status}>"
        )
