"""A request for resources that a function of the user computes from a trial's config."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from studydb.domain.canonical import canonical_json
from studydb.domain.errors import InvalidSpec
from studydb.domain.resources import Resources, read_resources_or_none

NOUN = "resource function"
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_KEY = "function"

AskRequest = Callable[[Mapping[str, Any]], Resources]
"""Asks the function what a trial with this config needs; raises DecisionFailed or NotAsked."""


@dataclass(frozen=True, slots=True)
class ResourceFunction:
    """
    The function that says what the trials of a study need, as the study's row stores it.

    Attributes:
        path: The import path "module:function" of the function, or of a trainable whose attribute
            `default_resources` is the function.
        ask: Calls the function in a child process; None in a process that has no such child.
    """

    path: str
    ask: AskRequest | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> "ResourceFunction":
        """
        Describe a function by its import path.

        Args:
            name: What error messages call the function.

        Raises:
            InvalidSpec: Workers cannot import the function.
        """
        module = getattr(function, "__module__", None)
        called = getattr(function, "__qualname__", None)
        path = f"{module}:{called}"
        if called is None:
            raise InvalidSpec(
                f"{name} is an object of the type {type(function).__name__}, which has no name by "
                "which workers can import it. At the top level of a module, write a function "
                "`def needs(config)` that calls the object, and give this function."
            )
        if module == "__main__" or not _PATH.fullmatch(path):
            raise InvalidSpec(
                f"{name} is the function {called}, which is defined in {module}, where workers "
                "cannot import it. Move it to the top level of a module as `def needs(config)`, "
                "and import it from there."
            )
        return cls(path)

    def asked_by(self, ask: AskRequest) -> "ResourceFunction":
        """Return a copy with `ask`, for a process that can call the function in a child process."""
        return replace(self, ask=ask)

    def to_json(self) -> dict[str, Any]:
        """Return what the study's row stores."""
        return {_KEY: self.path}

    def __str__(self) -> str:
        return f"{self.path}(config)"


Requested = Resources | ResourceFunction
"""The request of all trials of a study, or the function that computes each trial's request."""


def read_requested(name: str, value: Any) -> Requested | None:
    """
    Read what a study's trials ask for.

    Args:
        value: Amounts, a function, the path of a function, a `ResourceFunction` or its JSON, or
            None.

    Raises:
        InvalidSpec: The value is none of these, `read_resources` refuses the amounts, or workers
            cannot import the function.
    """
    if isinstance(value, ResourceFunction):
        return value
    if isinstance(value, str) and _PATH.fullmatch(value.strip()):
        return ResourceFunction(value.strip())
    if isinstance(value, Mapping) and isinstance(path := value.get(_KEY), str) and ":" in path:
        return ResourceFunction(path)
    if callable(value):
        return ResourceFunction.of(name, value)
    return read_resources_or_none(name, value)


Answers = dict[str, Resources]
"""What the function has answered, by `config_key`."""


def config_key(config: Mapping[str, Any]) -> str:
    """Return the key of a config in `Answers`."""
    return canonical_json(config)


class RequestNeeded(Exception):
    """
    A study's resource function must be asked before an operation can go on; nothing was written.

    Ask the function outside of the transaction, and call the operation again with the answer.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__("A study's resource function must be asked about a config.")
        self.config = config


def answer_for(
    requested: Requested | None, config: Mapping[str, Any], answers: Mapping[str, Resources]
) -> Resources | None:
    """
    Return what the function answered for this config; None if the study has no function.

    Raises:
        RequestNeeded: The function has not been asked about this config.
    """
    if not isinstance(requested, ResourceFunction):
        return None
    known = answers.get(config_key(config))
    if known is None:
        raise RequestNeeded(config)
    return known
