"""The synchronous schedulers of `Model`: they resume trials only after a rung has closed."""

import math
from abc import abstractmethod
from collections.abc import Container, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.model_clones import release
from harness.model_judging import Judged, ModelJudge, ModelRung, RungId, place
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason, State
from studydb.domain.metrics import Result
from studydb.domain.records import NewStudy

if TYPE_CHECKING:
    from harness.model import Model
    from harness.model_rows import ModelTrial

NONE_KEPT = (-math.inf, -1)

Waiting = tuple[RungId, dict[str, Any]]
"""A rung, and the entry of a trial that waits there."""


class ModelClosing(NamedTuple):
    """A rung that closes, and how many of the trials that wait there are kept."""

    rung_id: RungId
    keep: int


class ModelSynchronous(ModelJudge):
    """
    Pauses each trial at its open rungs; when a rung has closed, the kept trials go on.

    A trial that reaches a closed rung stops if its score is worse than that of the worst kept trial
    or if no trial was kept. NaN stops a trial at every rung.
    """

    def __init__(self, spec: NewStudy) -> None:
        super().__init__(spec)
        self.promotes = True

    @property
    def _percentage(self) -> float:
        return 50.0  # as in `BaseScheduler`; the cutoffs of these rungs decide nothing

    def judged_at(self, rung: ModelRung, result: Result, live: Mapping[int, float]) -> Judged:  # noqa: ARG002
        score, worst = self.score(result.value), None
        if rung.last_kept not in (None, NONE_KEPT):
            worst = rung.last_kept[0]  # type: ignore[index]
        if math.isnan(result.value):
            return Judged(Action.STOP, score, worst)
        if rung.last_kept is None:
            return Judged(Action.PAUSE, score)
        goes_on = worst is not None and score <= worst
        return Judged(Action.CONTINUE if goes_on else Action.STOP, score, worst)

    def next_kept(self, paused: Container[int]) -> Waiting | None:
        """
        Find the kept trial to resume next: its rung and its entry; None if no kept trial is paused.

        Rungs with a higher step come first, then rungs of lower brackets, then better trials.
        """
        closed = [
            (rung_id, entry)
            for rung_id, rung in self.rungs.items()
            if rung.last_kept is not None
            for entry in rung.waiting
            if entry["number"] in paused and place(entry) <= rung.last_kept
        ]
        order = sorted(closed, key=lambda one: (-one[0][1], one[0][0], place(one[1])))
        return order[0] if order else None

    @abstractmethod
    def next_closing(self, model: "Model", paused: Container[int]) -> ModelClosing | None:
        """The rung to close now; None if no rung can close now."""


class ModelOneEpoch(ModelSynchronous):
    """All trials pause at step `i`; then the best of them train on."""

    def milestones(self, bracket: int) -> list[int]:  # noqa: ARG002
        return [self.options["i"]]

    def next_closing(self, model: "Model", paused: Container[int]) -> ModelClosing | None:
        step = self.options["i"]
        rung = self.rungs[0, step]
        if rung.last_kept is not None or (model.is_open and spent(model) < 1 / 2):
            return None
        waits = any(entry["number"] in paused for entry in rung.waiting)
        if not waits or any(one < step for one in underway(model)):
            return None
        return ModelClosing((0, step), self.options["top_k"])


class ModelHyperBand(ModelSynchronous):
    """Bands of brackets; in a band, each bracket has one rung less than the bracket before it."""

    @property
    def _most(self) -> int:
        """The number of rungs of the first bracket of a band."""
        factor = Fraction(self.options["reduction_factor"])
        return next(s for s in range(99) if factor ** (s + 1) > self.options["max_t"])

    def _size(self, bracket: int) -> int:
        halvings = self._most - bracket % (self._most + 1)
        factor = Fraction(self.options["reduction_factor"])
        return math.ceil(Fraction(self._most + 1, halvings + 1) * factor**halvings)

    def bracket_of(self, draw: int) -> int:
        bracket = 0
        while draw >= self._end_of(bracket):
            bracket += 1
        return bracket

    def _end_of(self, bracket: int) -> int:
        """The first draw after the draws of a bracket."""
        return sum(self._size(one) for one in range(bracket + 1))

    def milestones(self, bracket: int) -> list[int]:
        halvings = self._most - bracket % (self._most + 1)
        factor = Fraction(self.options["reduction_factor"])
        return [math.floor(self.options["max_t"] / factor**k) for k in range(halvings, 0, -1)]

    def next_closing(self, model: "Model", paused: Container[int]) -> ModelClosing | None:
        for rung_id, rung in sorted(self.rungs.items()):
            bracket, step = rung_id
            is_open = bool(rung.entries) and rung.last_kept is None
            is_filled = model.next_draw >= self._end_of(bracket)
            waits = any(entry["number"] in paused for entry in rung.waiting)
            if not is_open or (not is_filled and (model.is_open or not waits)):
                continue
            if all(one >= step for one in underway(model, bracket)):
                return ModelClosing(rung_id, self._keep(rung_id, rung, is_filled=is_filled))
        return None

    def _keep(self, rung_id: RungId, rung: ModelRung, *, is_filled: bool) -> int:
        bracket, step = rung_id
        factor = Fraction(self.options["reduction_factor"])
        planned = self._size(bracket)
        for earlier in self.milestones(bracket):
            if earlier < step:
                planned = math.ceil(planned / factor)
        if not is_filled:
            planned = min(planned, len(rung.entries))
        return math.ceil(planned / factor)


def spent(model: "Model") -> float:
    """The share of `max_steps` that is spent; 0 without this limit."""
    most = model.spending.limits.get("max_steps", math.inf)
    return float(min(1.0, model.spending.steps / most))


def underway(model: "Model", bracket: int | None = None) -> list[int]:
    """The last live step (or 0) of each trial underway in a bracket; None: in all brackets."""
    return [
        max(trial.live, default=0)
        for trial in model.trials
        if bracket in (None, trial.bracket) and _is_underway(trial)
    ]


def _is_underway(trial: "ModelTrial") -> bool:
    return trial.state in (State.RUNNING, State.PENDING) or trial.paused_by == "study"


def can_be_claimed(model: "Model") -> bool:
    """Whether a trial is PENDING without a back-off; no rung closes while there is such a trial."""
    return any(one.state is State.PENDING and one.ready_at is None for one in model.trials)


def close(model: "Model", closing: ModelClosing) -> None:
    """Close a rung; a trial that a person has paused is kept only if too few other trials wait."""
    (bracket, step), rung = closing.rung_id, model.judge.rungs[closing.rung_id]
    kept = sorted(rung.waiting, key=lambda one: (_is_paused_by_person(model, one), place(one)))
    kept = kept[: closing.keep]
    rung.last_kept = max(map(place, kept), default=NONE_KEPT)
    data = {"bracket": bracket, "step": step, "kept": len(kept)}
    model._record_event("rung closed", "scheduler", data=data)


def _is_paused_by_person(model: "Model", entry: Mapping[str, Any]) -> bool:
    trial = model.trials[entry["number"]]
    return trial.paused_by == "person" or trial.request is Action.PAUSE


def give_up(model: "Model") -> None:
    """
    End the trials that wait at closed rungs and were not kept, except those that a person paused.

    A closed rung at which no trial waits any more is marked as over.
    """
    for rung in model.judge.rungs.values():
        if rung.last_kept is None:
            continue
        for entry in rung.waiting:
            trial = model.trials[entry["number"]]
            if trial.paused_by == "scheduler" and place(entry) > rung.last_kept:
                entry["waiting"] = False
                trial.state, trial.reason = State.TERMINATED, Reason.GIVEN_UP
                trial.ended_at, trial.paused_by = model.now, None
                release(trial)
        rung.is_over = rung.is_over or not rung.waiting
