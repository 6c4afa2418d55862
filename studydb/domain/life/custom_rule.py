"""A stop rule in the user's own code: its base class, what it reads, and how a study stores it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from studydb.domain.metrics import STEP, Result
from studydb.domain.objective import Objective
from studydb.domain.user_code import code_text, described_object, described_text, is_same_code

_NOUN = "stop rule"

DEFAULT_READS = 20
MOST_READS = 1_000
"""The largest `StopRule.reads`."""

LONGEST_WHY = 500
"""The reason that a rule or a custom scheduler gives is cut to this many bytes."""


@dataclass(frozen=True)
class TrialView:
    """
    What a custom stop rule reads of a trial.

    Attributes:
        number: The trial's number within its study; the first is 0.
        config: The trial's parameters, with the values that a person has changed, and the study's
            constants.
        metric: The study's metric; nested names are joined by "/".
        mode: "min" or "max".
        results: The trial's last results, oldest first, at most `StopRule.reads`. Each is a dict of
            the metrics, with the step as "training_iteration".
    """

    number: int
    config: dict[str, Any]
    metric: str
    mode: str
    results: list[dict[str, Any]]


class StopRule:
    """
    The base of stop rules in your own code. A rule is a frozen dataclass in an importable module.

    Attributes:
        reads: How many of a trial's last results the rule reads, at most 1,000. studydb reads this
            attribute when a study is created.
    """

    reads = DEFAULT_READS

    def should_stop(self, trial: TrialView) -> bool | str:
        """
        Decide after each result of a trial, within a second, whether the trial ends.

        studydb calls this method in a child process. The result is the last of `trial.results`.
        The list has no results that a later attempt of the trial has replaced.

        Returns:
            False to go on; True, or the reason in words, to end the trial as RULE_STOPPED.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class CustomRule:
    """
    A stop rule in the user's code, as a study's row stores it.

    A signed row of the table `trainable` has the same path and options. Workers make the rule from
    that row.

    Attributes:
        path: The import path "module:Class".
        options: The arguments by name, as plain values.
        reads: How many of a trial's last results the rule reads.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reads: int = DEFAULT_READS

    @property
    def needs_history(self) -> bool:
        """Whether the rule compares a result with earlier results of the trial."""
        return True

    def hit(self, history: Sequence[Result], n_results: int = 1, *, objective: Objective) -> bool:  # noqa: ARG002  other rules use them
        """Return False: a child process runs the rule, and `Batch.ruled` has the decision."""
        return False

    def may_hit(self, recent: Sequence[Result], *, objective: Objective) -> bool:  # noqa: ARG002  other rules use them
        """Return True: only the user's code knows at which results a trial ends."""
        return True

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in a row; `custom_rule_from_json` reads it."""
        return {"name": self.path, "options": dict(self.options), "reads": self.reads}

    def is_made_by(self, path: str, options: Mapping[str, Any] | None) -> bool:
        """Whether the code at a path, with these options, is this rule."""
        return is_same_code(self.path, self.options, path, options)

    def __str__(self) -> str:
        return code_text(self.path, self.options)


def custom_rule_from_json(stored: Mapping[str, Any]) -> CustomRule:
    """Read a custom rule of a study's row."""
    return CustomRule(stored["name"], stored["options"], stored["reads"])


def custom_rule_from_text(text: str) -> CustomRule:
    """
    Read a rule such as "my_rules:TooSlow(limit=3)"; nothing is imported.

    Raises:
        InvalidSpec: See `described_text`.
    """
    return CustomRule(*described_text(text, noun=_NOUN))


def custom_rule_of(given: object) -> CustomRule:
    """
    Describe an object of a subclass of `StopRule`.

    Raises:
        InvalidSpec: See `described_object`.
    """
    return CustomRule(*described_object(given, noun=_NOUN, example="TooSlow(limit=3)"))


def result_view(result: Result, metric: str) -> dict[str, Any]:
    """Write a result as the dict that a custom rule reads."""
    return {**result.metrics, metric: result.value, STEP: result.step}


class RuleFailure(Struct, frozen=True):
    """
    Why a custom rule has not decided on a result.

    Attributes:
        step: The step of the result.
        why: Names the rule and the cause.
        traceback: See `DecisionFailed`.
    """

    step: int
    why: str
    traceback: str = ""


class RuleDecision(Struct, frozen=True):
    """
    What the custom rules of a study say about the results of a batch.

    Attributes:
        stops_at: The step of the first result at which a rule ends the trial; None if no rule does.
        rule: The rule that ends the trial, as text.
        why: The reason that the rule gives; "" if it gives none.
        failure: The first failure of a rule; None if no rule has failed.
    """

    stops_at: int | None = None
    rule: str = ""
    why: str = ""
    failure: RuleFailure | None = None
