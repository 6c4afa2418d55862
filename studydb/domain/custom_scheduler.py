"""
A scheduler in the user's own code: its base class, and the plain data that it reads and returns.

Only `judge` and `next_work` are the user's code. All that transactions need under their locks is a
`SchedulerPlan`, which is read from the user's object once, when a study is created.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from msgspec import structs

from studydb.domain.canonical import is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.decisions import Decision, RungKey
from studydb.domain.scheduling import (
    QueueView,
    Ranked,
    Report,
    RungView,
    StudyView,
    WaitingTrial,
    Work,
)

JUDGE, NEXT_WORK = "judge", "next_work"
"""The methods of the user's code."""

MOST_RUNGS = 100
"""How many rungs a scheduler with milestones may have, in all brackets together."""

MOST_BRACKETS = 100
MOST_BEST = 100
"""The largest `reads_best`."""

LARGEST_STEP = 2**63 - 1


class CustomScheduler:
    """
    The base of schedulers in your own code; each is a frozen dataclass in an importable module.

    studydb reads these attributes once, when a study is created; an attribute that is left out has
    its default. Each may be a field, a class attribute or a property.

    Attributes:
        milestones: The steps of the rungs, ascending, all below `max_t`.
        interval: The distance between the steps of the rungs, given instead of `milestones`.
        max_t: The step that completes a trial, without a call of `judge`; None (default) if trials
            may train without end.
        brackets: The number of brackets; default 1. A new trial's bracket is random.
        weights: How likely each bracket is, relative to the others; by default equally likely.
        quantile: Where a rung's cutoff lies, 0 to 1; default 0.5. With 0.75, about a quarter of the
            entries that rank are at least as good as the cutoff.
        resumes: Whether trials wait at rungs, so that workers ask `next_work`; default False.
        reads_best: The most entries that `judge` reads by `view.best`, up to 100; default 0.
        reads_mean: Whether `judge` reads `view.mean`; default False.
    """

    def judge(self, report: Report, view: "JudgeView") -> Decision:
        """
        Judge the first report of a trial at a rung, within a second.

        Workers, own loops and simulations call this method in a separate process. If the rung has
        changed before the decision is stored, the decision is dropped, and the method is called
        again.
        """
        raise NotImplementedError

    def next_work(self, view: "WorkView") -> Work:
        """Say within a second what a free worker does; called only if `resumes` is True."""
        raise NotImplementedError


@dataclass(frozen=True)
class SchedulerPlan:
    """
    What transactions need of a custom scheduler, as the study's row stores it.

    Attributes: see `CustomScheduler`.
    """

    milestones: tuple[int, ...] = ()
    interval: int | None = None
    max_t: int | None = None
    brackets: int = 1
    weights: tuple[float, ...] | None = None
    quantile: float = 0.5
    resumes: bool = False
    reads_best: int = 0
    reads_mean: bool = False

    @classmethod
    def of(cls, scheduler: object) -> "SchedulerPlan":
        """
        Read and check the plan of a user's object.

        Raises:
            InvalidSpec: An attribute has a wrong type, is out of range, or contradicts another.
            Exception: A property of the object has raised it.
        """
        given = {
            each.name: _unboxed(getattr(scheduler, each.name, each.default)) for each in fields(cls)
        }
        for name in ("milestones", "weights"):
            if isinstance(given[name], Sequence) and not isinstance(given[name], str):
                given[name] = tuple(map(_unboxed, given[name]))
        return cls.checked(given)

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> "SchedulerPlan":
        """Make a plan; raise InvalidSpec if `given` is not a valid plan."""
        plan = cls(**{**given, "milestones": given["milestones"] or ()})
        for error in plan._errors():
            raise InvalidSpec(error)
        return plan

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "SchedulerPlan":
        """Read a plan of a study's row."""
        weights = stored["weights"]
        return cls.checked(
            {
                **stored,
                "milestones": tuple(stored["milestones"]),
                "weights": None if weights is None else tuple(weights),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in a row; `from_json` reads it."""
        return asdict(self)

    def _errors(self) -> Iterator[str]:
        """Yield what is wrong; use only the first text, as each check relies on earlier checks."""
        yield from self._wrong_steps()
        brackets, weights = self.brackets, self.weights
        if not (_is_int(brackets) and 1 <= brackets <= MOST_BRACKETS):
            yield f"Its brackets are {brackets!r}; give a number from 1 to {MOST_BRACKETS}."
        if len(self.milestones) * brackets > MOST_RUNGS:
            yield (
                f"It has {len(self.milestones)} milestones in each bracket; all brackets together "
                f"may have {MOST_RUNGS} rungs. Give an interval, or fewer milestones or brackets."
            )
        if weights is not None and not _are_weights(weights, brackets):
            yield (
                f"Its weights are {weights!r}; give a finite number of 0 or more for each bracket, "
                "not all of them 0."
            )
        if not (is_number(self.quantile) and 0 <= self.quantile <= 1):
            yield f"Its quantile is {self.quantile!r}; give a number from 0 to 1."
        if not (_is_int(self.reads_best) and 0 <= self.reads_best <= MOST_BEST):
            yield f"Its reads_best is {self.reads_best!r}; give a number from 0 to {MOST_BEST}."
        for name in ("resumes", "reads_mean"):
            if not isinstance(value := getattr(self, name), bool):
                yield f"Its {name} is {value!r}; give True or False."

    def _wrong_steps(self) -> Iterator[str]:
        steps, max_t = self.milestones, self.max_t
        if not (isinstance(steps, tuple) and all(map(_is_step, steps))):
            yield f"Its milestones are {steps!r}; give integers from 1 on, such as (1, 3, 9)."
        if list(steps) != sorted(set(steps)):
            yield f"Its milestones are {steps!r}; give them in ascending order, each once."
        if self.interval is not None and not _is_step(self.interval):
            yield f"Its interval is {self.interval!r}; give an integer from 1 on, or None."
        if bool(steps) == (self.interval is not None):
            yield "It needs milestones or an interval, but not both, to know when to judge."
        if max_t is not None and not _is_step(max_t):
            yield f"Its max_t is {max_t!r}; give an integer from 1 on, or None."
        if max_t is not None and steps and steps[-1] >= max_t:
            yield f"Its milestones are {steps!r}; each must be below max_t, which is {max_t}."

    def next_milestone(self, step: int) -> int | None:
        """
        Return the first step after `step` that needs a decision; None if there is none.

        From `max_t` on, each step needs one: a trial that begins from a checkpoint of such a step
        is complete at its first report.
        """
        if self.max_t is not None and step >= self.max_t:
            return step + 1
        if self.interval is not None:
            due: int | None = (step // self.interval + 1) * self.interval
        else:
            place = bisect_right(self.milestones, step)
            due = self.milestones[place] if place < len(self.milestones) else None
        return min((each for each in (due, self.max_t) if each is not None), default=None)

    def milestone_at(self, step: int) -> int | None:
        """
        Return the step of the last rung up to `step`.

        Returns:
            None if all rungs are after `step`, or if `step` is `max_t` or more.
        """
        if self.max_t is not None and step >= self.max_t:
            return None
        if self.interval is not None:
            return step // self.interval * self.interval or None
        place = bisect_right(self.milestones, step)
        return self.milestones[place - 1] if place else None


def _unboxed(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_weights(weights: Any, n: int) -> bool:
    return (
        isinstance(weights, tuple)
        and len(weights) == n
        and all(is_number(each) and 0 <= each < math.inf for each in weights)
        and sum(weights) > 0
    )


def _is_step(value: Any) -> bool:
    return _is_int(value) and 1 <= value <= LARGEST_STEP


class Question(NamedTuple):
    """
    A question to the user's code, with all that the code may read.

    Equal questions look the same to the code. So a transaction may use the answer that the code has
    given to an equal question, and it uses no other answer.

    Attributes:
        method: `JUDGE` or `NEXT_WORK`.
        text: What the code reads, as JSON with sorted keys.
    """

    method: str
    text: str


AskScheduler = Callable[[Question], Decision | Work]
"""
Asks the user's code; raises DecisionFailed or NotAsked if there is no answer. A call takes a few
seconds at most, or longer if the code must be imported first.
"""

_RUNG = ("n", "cutoff", "entered", "n_entries", "is_closed", "closed_cutoff")


def judge_question(
    report: Report, key: RungKey, view: StudyView, *, reads_best: int, reads_mean: bool
) -> Question:
    """Write down what `judge` may read about a report at a rung."""
    best = view.best(key, reads_best) if reads_best else ()
    return _question(
        JUDGE,
        report=structs.asdict(report),
        key=key,
        rung=_rung(view.rung(key)),
        best=[(one.trial_id, one.score) for one in best],
        reads_best=reads_best,
        mean=view.mean() if reads_mean else None,
        best_score=view.best_score(),
    )


def work_question(view: QueueView, keys: Sequence[RungKey], brackets: int) -> Question:
    """
    Write down what `next_work` may read.

    It may read the rungs, the best trial that waits at each rung, the trials underway, the next
    draw, and whether a trial may start.

    Args:
        keys: Rungs that `next_work` can read even if they are closed and no trial waits there.
        brackets: How many brackets the scheduler has.
    """
    rungs = view.rungs()
    return _question(
        NEXT_WORK,
        next_draw=view.next_draw,
        may_start=view.may_start,
        rungs=[(key, _rung(view.rung(key)), _waiting(view, key)) for key in rungs],
        others=[(key, _rung(view.rung(key))) for key in keys if key not in rungs],
        underway=[sorted(view.underway(bracket)) for bracket in range(brackets)],
    )


def _question(method: str, **data: Any) -> Question:
    return Question(method, json.dumps(data, sort_keys=True))


def _rung(rung: RungView) -> dict[str, Any]:
    return {name: getattr(rung, name) for name in _RUNG}


def _waiting(view: QueueView, key: RungKey) -> tuple[int, float] | None:
    best = view.best_waiting(key)
    return None if best is None else (best.trial_id, best.score)


class JudgeView:
    """
    What `judge` of a custom scheduler reads: a `StudyView` with a single rung.

    Attributes:
        report: The report to judge.
        key: The rung that the report has reached.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self.report = Report(**data["report"])
        self.key = RungKey(*data["key"])

    def rung(self, key: RungKey | None = None) -> RungView:
        """Return the rung as it was before this report; only the rung `self.key` can be read."""
        self._check(key)
        return RungView(**self._data["rung"])

    def best(self, key: RungKey, n: int) -> Sequence[Ranked]:
        """
        Return the rung's best `n` entries, best first, without checkpoints and configs.

        Args:
            n: At most `reads_best`.
        """
        self._check(key)
        if n > (most := self._data["reads_best"]):
            raise InvalidSpec(
                f"judge asks for the best {n} entries; its reads_best is {most}. Set reads_best to "
                f"the number that judge reads, {MOST_BEST} at most."
            )
        return [Ranked(*entry) for entry in self._data["best"][:n]]

    def mean(self) -> float:
        """Return the score of the mean of the trial's values; needs `reads_mean`."""
        mean = self._data["mean"]
        if mean is None:
            raise InvalidSpec("judge asks for the mean; set reads_mean = True in its class.")
        return float(mean)

    def best_score(self) -> float:
        """Return the best score of the reporting trial, this report included."""
        return float(self._data["best_score"])

    def _check(self, key: RungKey | None) -> None:
        if key is not None and key != self.key:
            raise InvalidSpec(
                f"judge reads the rung {tuple(key)}; it may read {tuple(self.key)} only."
            )


class WorkView:
    """
    What `next_work` of a custom scheduler reads: plain data copied from a `QueueView`.

    A `WorkView` has no `spent`. It has only the rungs of `rungs()` and the rungs of the scheduler's
    milestones.

    Attributes:
        next_draw, may_start: See `QueueView`.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.next_draw, self.may_start = int(data["next_draw"]), bool(data["may_start"])
        self._underway: list[list[int]] = data["underway"]
        self._rungs = {RungKey(*key): RungView(**rung) for key, rung, _ in data["rungs"]}
        self._waiting = {
            RungKey(*key): WaitingTrial(RungKey(*key), *best)
            for key, _, best in data["rungs"]
            if best
        }
        self._others = {RungKey(*key): RungView(**rung) for key, rung in data["others"]}

    def rungs(self) -> Sequence[RungKey]:
        """Return, in ascending order, the rungs that are open, or at which trials still wait."""
        return list(self._rungs)

    def rung(self, key: RungKey) -> RungView:
        """Return a rung of `rungs()`, or the rung of one of the scheduler's milestones."""
        rung = self.find(key)
        if rung is None:
            raise InvalidSpec(
                f"next_work reads the rung {tuple(key)}, which is not in view.rungs() and at no "
                "milestone; read a rung of view.rungs(), or name the milestone in `milestones`."
            )
        return rung

    def find(self, key: RungKey) -> RungView | None:
        """Return a rung, or None if `rung` would raise."""
        return self._rungs.get(key) or self._others.get(key)

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        """
        Return the best trial that waits at a rung; None if none waits.

        If several waiting trials have the best score, the first that reported is returned.
        """
        return self._waiting.get(key)

    def underway(self, bracket: int) -> Sequence[int]:
        """Return the last step of each trial that is underway in a bracket; see `QueueView`."""
        return self._underway[bracket] if 0 <= bracket < len(self._underway) else ()

    @property
    def is_idle(self) -> bool:
        """Whether no trial is underway in any bracket."""
        return not any(self._underway)
