"""A scheduler that a study's row describes; its `judge` and `next_work` are the user's code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from studydb.domain.custom_scheduler import (
    AskScheduler,
    CustomScheduler,
    SchedulerPlan,
    judge_question,
    work_question,
)
from studydb.domain.deciding import DecisionNeeded
from studydb.domain.life.decisions import CONTINUE, Action, Decision, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import QueueView, Report, RungSpec, StudyView, Work
from studydb.domain.seeds import unit_number
from studydb.domain.user_code import code_text, described_object, described_text, is_same_code

_NOUN = "scheduler"


@dataclass(frozen=True)
class UserScheduler:
    """
    Knows the rungs of a custom scheduler; raises DecisionNeeded when the user's code must decide.

    Attributes:
        path: The import path "module:Class".
        options: The arguments by name, as plain values.
        plan: What the user's object declares; a default plan until `described_scheduler` has read
            the object.
        ask: Asks the user's code; None in a process that cannot ask it.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: SchedulerPlan = field(default_factory=SchedulerPlan)
    ask: AskScheduler | None = field(default=None, compare=False, repr=False)

    @property
    def max_t(self) -> int | None:
        """The step that completes a trial; None if the scheduler completes no trial."""
        return self.plan.max_t

    @classmethod
    def from_text(cls, text: str) -> "UserScheduler":
        """Read a text such as "my_rules:Heats(max_t=9)"; nothing is imported."""
        return cls(*described_text(text, noun=_NOUN))

    @classmethod
    def of(cls, given: CustomScheduler | type) -> "UserScheduler":
        """Describe an object of a subclass of `CustomScheduler`."""
        return cls(*described_object(given, noun=_NOUN, example="Heats(max_t=9)"))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "UserScheduler":
        """Read the scheduler of a study's row."""
        return cls(stored["name"], stored["options"], SchedulerPlan.from_json(stored["plan"]))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.path, "options": dict(self.options), "plan": self.plan.to_json()}

    def asked_by(self, ask: AskScheduler) -> "UserScheduler":
        """Return a copy with `ask`, for a process that can ask the user's code."""
        return replace(self, ask=ask)

    def is_made_by(self, path: str, options: Mapping[str, Any] | None) -> bool:
        """Whether the code at a path, with these options, is this scheduler."""
        return is_same_code(self.path, self.options, path, options)

    def __str__(self) -> str:
        return code_text(self.path, self.options)

    @property
    def resumes(self) -> bool:
        return self.plan.resumes

    @property
    def reads_best(self) -> int:
        return self.plan.reads_best

    @property
    def needs_budget(self) -> bool:
        return False

    @property
    def closes_rungs(self) -> bool:
        return False  # a custom scheduler may decide by the cutoff, even if it closes rungs

    @property
    def mean_from(self) -> int | None:
        return 1 if self.plan.reads_mean else None

    def rungs(self) -> Sequence[RungSpec]:
        return [self.rung_spec(key) for key in self._keys()]

    def _keys(self) -> list[RungKey]:
        """Return the rungs of the milestones, ascending; [] if the plan has an interval instead."""
        brackets = range(self.plan.brackets)
        return [RungKey(bracket, step) for bracket in brackets for step in self.plan.milestones]

    def rung_spec(self, key: RungKey) -> RungSpec:
        return RungSpec(key, self.plan.quantile)

    def bracket_of(self, *, seed: int, draw: int) -> int:
        """Draw a bracket by the weights."""
        weights = self.plan.weights or (1.0,) * self.plan.brackets
        ends = list(accumulate(weights))
        drawn = unit_number(seed, "bracket", draw) * ends[-1]
        last = max(bracket for bracket, weight in enumerate(weights) if weight)
        return next((bracket for bracket, end in enumerate(ends) if drawn < end), last)

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        return self.plan.next_milestone(step)

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        milestone = self.plan.milestone_at(step)
        return () if milestone is None else (RungKey(bracket, milestone),)

    def judge(self, report: Report, view: StudyView) -> Decision:
        """
        Complete a trial at `max_t`; continue a trial that has no rung to enter at this step.

        Raises:
            DecisionNeeded: The trial has a rung to enter, so the user's code must judge the report.
        """
        if self.plan.max_t is not None and report.step >= self.plan.max_t:
            return Decision(Action.STOP, Reason.COMPLETED)
        for key in self.locks(report.bracket, report.step):
            if not view.rung(key).entered:
                question = judge_question(
                    report, key, view, reads_best=self.reads_best, reads_mean=self.plan.reads_mean
                )
                raise DecisionNeeded(question, step=report.step)
        return CONTINUE

    def next_work(self, view: QueueView) -> Work:
        """Raise DecisionNeeded, because the user's code decides."""
        raise DecisionNeeded(work_question(view, self._keys(), self.plan.brackets))
