"""Which exceptions of a trial are retried, and which of them count as failures."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.failures import Failure, type_name
from studydb.domain.specs.building import build, rebuild
from studydb.domain.specs.grammar import parse_call
from studydb.domain.specs.spec import Spec, suggesting_options

UNCOUNTED_IN_A_ROW = 9
"""
At most this many failures in a row without a new checkpoint are UNCOUNTED; each further failure
counts.
"""


class Counting(StrEnum):
    """What a failure means for its trial."""

    COUNTED = "counted"
    """The trial is retried as long as `max_failures` allows it."""
    UNCOUNTED = "uncounted"
    """The trial is retried, and the failure does not count."""
    FINAL = "final"
    """The trial is not retried."""


@suggesting_options
@dataclass(frozen=True)
class Retry(Spec):
    """
    Which exceptions are retried; a class stands for its subclasses, too.

    Classes are given as classes or as qualified names, such as "ValueError" and
    "torch.OutOfMemoryError". If several options name an exception, `never` comes before
    `uncounted`, and `uncounted` before `on`.

    Attributes:
        on: Of the exceptions that the other two options do not name, only these are retried; None
            for all.
        never: A trial that raises one of these is not retried.
        uncounted: These are retried and do not count as failures. If a trial fails 10 times in a
            row without a new checkpoint, the 10th and each further failure in the row count.
    """

    on: Any = None
    never: Any = ()
    uncounted: Any = ()

    def _check(self) -> None:
        for name in self.arguments():
            given = getattr(self, name)
            names = None if given is None and name == "on" else _names(name, given)
            object.__setattr__(self, name, names)

    def counting(self, failure: Failure) -> Counting:
        """Tell what a failure means, by the qualified names of the exception's class and bases."""
        kinds = {failure.type, *failure.bases}
        if kinds.intersection(self.never):
            return Counting.FINAL
        if kinds.intersection(self.uncounted):
            return Counting.UNCOUNTED
        if self.on is not None and not kinds.intersection(self.on):
            return Counting.FINAL
        return Counting.COUNTED

    def options(self) -> dict[str, Any]:
        """Return the lists of names; `on` is left out if it is None."""
        given = {name: getattr(self, name) for name in self.arguments()}
        return {name: list(names) for name, names in given.items() if names or names == ()}

    def __str__(self) -> str:
        lists = (f"{name}=[{', '.join(names)}]" for name, names in self.options().items() if names)
        return f"Retry({', '.join(lists)})"


_KNOWN = {"Retry": Retry}


def read_retry(name: str, value: Any) -> Retry | None:
    """
    Read a `Retry`, its text such as "Retry(never=[ValueError])", or its JSON; None stays None.

    Raises:
        InvalidSpec: The value is none of these, or an option is wrong.
    """
    if value is None or isinstance(value, Retry):
        return value
    if isinstance(value, str):
        return build(parse_call(value), _KNOWN, noun="retry policy")
    if isinstance(value, Mapping):
        return rebuild(value, _KNOWN, noun="retry policy")
    raise InvalidSpec(
        f"{name} is {value!r}; give studydb.Retry(…), such as studydb.Retry(never=[ValueError])."
    )


def _names(argument: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str | type):
        given = [given]
    if not isinstance(given, list | tuple | set | frozenset):
        raise InvalidSpec(f"Retry.{argument} is {given!r}; give a list of exception classes.")
    return tuple(_name(argument, each) for each in given)


def _name(argument: str, given: Any) -> str:
    if isinstance(given, type) and issubclass(given, BaseException):
        return type_name(given)
    if isinstance(given, str) and all(part.isidentifier() for part in given.split(".")):
        return given
    raise InvalidSpec(
        f"Retry.{argument} has {given!r}, which is no exception class and no name of one; "
        "give for example ValueError or 'package.module.Error'."
    )
