"""The base of specs, such as schedulers, searchers, distributions and studydb's stop rules."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import wraps
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args

from studydb.domain.canonical import is_integral, is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.text.other_tools import hint

_LARGEST = 2**63 - 1
"""The largest integer in a column of 64 bits."""

_NOUNS = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


class Spec:
    """
    A name with options, which are checked by their annotations and stored in a study's row.

    A new spec is a frozen dataclass derived from this class. The type of an option is checked if
    the option is annotated with bool, int, float or str, perhaps with `| None`. The spec's `_check`
    checks the types of other options, the ranges of values, and whether options contradict each
    other.

    Attributes:
        kind: The spec's name in calls and in JSON; by default the class's name.
        kind_key: The key of the spec's name in JSON.
        is_bounded: Whether integers must fit into a column of 64 bits.
        absent: By name, the values of options that a row of an older version lacks. A missing
            option that is not named here has its default.
    """

    kind: ClassVar[str]
    kind_key: ClassVar[str] = "name"
    is_bounded: ClassVar[bool] = True
    absent: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if "kind" not in vars(cls):
            cls.kind = cls.__name__

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            option = _read_option(
                getattr(self, field.name),
                field.type,
                subject=f"{self.kind}.{field.name}",
                is_bounded=self.is_bounded,
            )
            object.__setattr__(self, field.name, option)
        self._check()

    def _check(self) -> None:
        """Raise `InvalidSpec` if an option is out of range or contradicts another."""

    @classmethod
    def arguments(cls) -> list[str]:
        """Return the options' names in order."""
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]

    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.arguments()}

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored in a row; `rebuild` reads it."""
        return {self.kind_key: self.kind} | self.options()


SpecT = TypeVar("SpecT", bound=Spec)


def suggesting_options(cls: type[SpecT]) -> type[SpecT]:
    """
    Let a spec's class refuse an unknown option with the options that it has.

    Write the decorator above `@dataclass`.

    Raises:
        InvalidSpec: When an object is made with an unknown keyword; the message suggests an option.
    """
    make, takes = cls.__init__, cls.arguments()

    @wraps(make)
    def checked(self: SpecT, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in takes:
                raise unknown_option(cls.kind, name, takes)
        make(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[assignment]
    return cls


def unknown_option(kind: str, name: str, known: Iterable[str]) -> InvalidSpec:
    """Make the error for an option that the spec of this kind does not have."""
    takes = list(known)
    return InvalidSpec(
        f"{kind} has no argument {name!r}; it takes {', '.join(takes) or 'no arguments'}."
        + hint(name, takes)
    )


def _read_option(value: Any, annotation: Any, *, subject: str, is_bounded: bool) -> Any:
    kinds = set(get_args(annotation)) if isinstance(annotation, UnionType) else {annotation}
    optional = NoneType in kinds
    if len(kinds - {NoneType}) > 1:
        return value  # `_check` reads it
    kind = (kinds - {NoneType}).pop()
    if kind not in _NOUNS or (optional and value is None):
        return value
    if getattr(value, "ndim", None) == 0:  # a numpy number
        value = value.item()
    fits = {bool: isinstance(value, bool), int: is_integral(value), float: is_number(value)}
    if not fits.get(kind, isinstance(value, kind)):
        noun = f"{_NOUNS[kind]}{' or None' if optional else ''}"
        raise InvalidSpec(f"{subject} is {value!r}; it must be {noun}.")
    if kind is int and is_bounded and abs(value) > _LARGEST:
        raise InvalidSpec(f"{subject} is {value!r}; it must fit into 64 bits.")
    return int(value) if kind is int else value
