"""Make the object of a custom stop rule from its code, in a child, and ask the object."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from studydb.domain.canonical import canonical_json
from studydb.domain.errors import TrainableError
from studydb.domain.failures import bounded
from studydb.domain.life.custom_rule import (
    DEFAULT_READS,
    LONGEST_WHY,
    MOST_READS,
    StopRule,
    TrialView,
)
from studydb.domain.trainable import Trainable

METHOD = "should_stop"


def options_of(code: Trainable) -> dict[str, Any] | None:
    """
    Read the options of a rule or scheduler from its code; None if they cannot be read.

    This function does not check whether a trusted key has signed the code.
    """
    with suppress(ValueError, RecursionError):
        options = json.loads(code.source or b"")
        canonical_json(options)  # refuses NaN
        return options if isinstance(options, dict) else None
    return None


def make_rule(code: Trainable, loaded: Any) -> Any:
    """
    Make the object of a rule from its class; the class may raise anything.

    Raises:
        TrainableError: What was loaded is no class that defines `should_stop`, or the rule's
            `reads` is not an integer from 1 to `MOST_READS`.
    """
    if not isinstance(loaded, type) or not callable(getattr(loaded, METHOD, None)):
        raise TrainableError(
            f"{code.name} is not a class with a method {METHOD}(trial). Derive it from "
            "studydb.StopRule."
        )
    if getattr(loaded, METHOD) is StopRule.should_stop:
        raise TrainableError(
            f"{code.name} does not define {METHOD}(trial), which decides when a trial ends."
        )
    rule = loaded(**(options_of(code) or {}))
    reads = getattr(rule, "reads", DEFAULT_READS)
    if isinstance(reads, bool) or not isinstance(reads, int) or not 1 <= reads <= MOST_READS:
        raise TrainableError(
            f"{code.name}.reads is {reads!r}; it must be an integer from 1 to {MOST_READS}."
        )
    return rule


def declared_reads(rule: Any) -> int:
    """Return how many of a trial's last results a rule reads; `make_rule` checked the number."""
    return int(getattr(rule, "reads", DEFAULT_READS))


def ask_rule(rule: Any, arguments: Mapping[str, Any]) -> bool | str:
    """
    Ask a rule about the trial that a `TrialView` describes; the rule may raise anything.

    Raises:
        TrainableError: The answer is neither a bool nor a reason in words.
    """
    met = rule.should_stop(TrialView(**arguments))
    if getattr(met, "ndim", None) == 0:  # a bool of numpy
        met = met.item()
    if isinstance(met, bool):
        return met
    if isinstance(met, str) and met.strip():
        return bounded(met, LONGEST_WHY)
    given = repr(met) if met is None or isinstance(met, str) else type(met).__name__
    raise TrainableError(
        f"{METHOD} returned {given}; return False to go on, True or a reason in words to end the "
        "trial."
    )


def view_arguments(view: TrialView) -> dict[str, Any]:
    """Turn a view into the plain data from which `ask_rule` makes it again."""
    return {each.name: getattr(view, each.name) for each in fields(view)}
