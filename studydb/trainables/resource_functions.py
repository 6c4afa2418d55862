"""
What a decider does for resource functions, and how the asking process reads the answer.

The decider calls the function for a config, or reads the trainable's `default_resources`.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import InvalidSpec, TrainableError
from studydb.domain.resources import Resources, read_resources
from studydb.domain.text.display import with_article
from studydb.domain.trainable import Trainable

ATTRIBUTE = "default_resources"
"""The attribute of a trainable that says what its trials need."""

REQUEST, DEFAULT = "request of a config", "default request"
"""The names of the two questions; see `ask_function` and `ask_default`."""


def keep_loaded(_code: Trainable, loaded: Any) -> Any:
    """Return what was imported: a resource function, or the study's trainable."""
    return loaded


def ask_function(loaded: Any, arguments: Mapping[str, Any]) -> dict[str, float]:
    """
    Ask what a trial with this config needs; the user's code may raise anything.

    A trainable that no longer has `default_resources` is itself called, because what was imported
    does not say whether it is a trainable or a resource function.

    Args:
        arguments: Has the config under "config", as JSON text.

    Raises:
        TrainableError: The answer is not amounts of resources, or a trainable's `default_resources`
            is no longer a function.
    """
    function = getattr(loaded, ATTRIBUTE, loaded)
    if not callable(function):
        raise TrainableError(
            f"{ATTRIBUTE} is {with_article(type(function).__name__)} now, and was a function when "
            "the study was created. Make it a function of the config again."
        )
    answer = function(json.loads(arguments["config"]))
    if answer is None:
        raise TrainableError(
            "it returned None; return amounts by name, such as {'gpus': 1}, or {} for nothing."
        )
    try:
        return read_resources("what it returned", answer).amounts
    except InvalidSpec as error:
        raise TrainableError(str(error)) from None


class DefaultAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """
    The answer of `ask_default`, which the caller decodes and does not trust.

    Attributes:
        amounts: None if the trainable's `default_resources` is missing, None or a function.
    """

    is_function: bool
    amounts: dict[str, float] | None = None


def ask_default(loaded: Any, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Read what a trainable says that its trials need.

    Raises:
        TrainableError: The attribute is neither amounts of resources nor a function.
    """
    default = getattr(loaded, ATTRIBUTE, None)
    if default is None or callable(default):
        return {"is_function": default is not None, "amounts": None}
    try:
        return {"is_function": False, "amounts": read_resources(ATTRIBUTE, default).amounts}
    except InvalidSpec as error:
        raise TrainableError(str(error)) from None


def read_answer(amounts: Mapping[str, float]) -> Resources:
    """
    Turn the answer of `ask_function` into the resources that a trial asks for.

    Raises:
        DecisionFailed: The answer is not amounts of resources. The child checks its own answer, but
            the child is not trusted.
    """
    try:
        return read_resources("what it returned", amounts)
    except InvalidSpec as error:
        raise DecisionFailed(str(error)) from None
