"""The leaves of a search space: distributions and constants by path, read from Python or JSON."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from studydb.domain.canonical import MAX_DEPTH, plain, plain_text
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.distributions import DISTRIBUTIONS
from studydb.domain.space.domains import KIND, Domain
from studydb.domain.space.lookalikes import LONGEST_SHOWN, check_dict, check_text
from studydb.domain.specs.building import rebuild


class Written(Enum):
    """Where a space is written; the place decides how its dicts, lists and texts are read."""

    IN_PYTHON = "in Python, or on a command line"
    IN_FILE = "in a JSON file"
    STORED = "in the study's row"
    CONSTANT = "in the argument of `constant`"


_BY_USER = frozenset({Written.IN_PYTHON, Written.IN_FILE})


class Constant(Struct, frozen=True):
    """A value that every configuration receives unchanged; made by `constant`."""

    value: Any


def constant(value: Any) -> Constant:
    """
    Give a value to every trial unchanged.

    Numbers, texts, booleans and None need no `constant`. Lists need it, because (0, 1) is often
    meant as a range and [0, 1] as a choice. A text or dict that looks like a distribution needs it.
    """
    return Constant(value)


def walk(
    tree: Mapping[Any, Any], *, written: Written, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """
    Yield the leaves of a nested dict.

    Args:
        tree: Distributions, constants and nested dicts by name.
        written: Where the tree was written. In a JSON file or in the study's row in the database,
            {"$": kind, …} is a distribution; elsewhere it is an error. In the study's row and
            inside `constant(…)`, all lists and texts are constants.
        prefix: The path of the tree with "/" at its end; "" at the top.

    Yields:
        Each leaf's path and its domain or plain constant, in the order of the dicts.

    Raises:
        InvalidSpec: A name, distribution or constant is wrong, or the tree is nested too deeply;
            the message names the path.
    """
    if prefix.count("/") > MAX_DEPTH:
        raise InvalidSpec(
            f"The space is nested more than {MAX_DEPTH} levels deep at {prefix[:40]!r}; flatten it."
        )
    for key, value in tree.items():
        path = prefix + check_key(key, prefix=prefix)
        below = value.value if isinstance(value, Constant) else value
        if not isinstance(below, Mapping) or not below:
            yield path, _read_leaf(value, path, written=written)
        elif isinstance(value, Constant):
            yield from walk(below, written=Written.CONSTANT, prefix=f"{path}/")
        elif written in {Written.IN_FILE, Written.STORED} and KIND in value:
            yield path, _read_domain(value, path)
        else:
            if written in _BY_USER:
                check_dict(value, path, in_file=written is Written.IN_FILE)
            yield from walk(value, written=written, prefix=f"{path}/")


def check_key(key: Any, *, prefix: str = "") -> str:
    """
    Check one part of a parameter's path.

    Raises:
        InvalidSpec: The part is empty or not a text, contains a "/", begins with "$", or
            `plain_text` refuses it.
    """
    place = f" under {prefix[:-1]!r}" if prefix else ""
    if not isinstance(key, str):
        raise InvalidSpec(
            f"The name {key!r}{place} is not a text; give each parameter a text as its name."
        )
    if not key:
        raise InvalidSpec(f"A name{place} is empty; give each parameter a name.")
    if "/" in key:
        raise InvalidSpec(f"The name {key!r}{place} holds a '/', which joins names; nest dicts.")
    if key.startswith(KIND):
        raise InvalidSpec(f"The name {key!r}{place} begins with '$', which is reserved; rename it.")
    return plain_text(key, subject=f"The name {key!r}{place}")


def leaf_json(leaf: Any) -> Any:
    """Return a distribution's JSON form, or the constant itself."""
    return leaf.to_json() if isinstance(leaf, Domain) else leaf


def _read_leaf(value: Any, path: str, *, written: Written) -> Any:
    subject = f"Parameter {path!r}"
    if isinstance(value, Domain) and written is not Written.CONSTANT:
        return value
    if isinstance(value, Constant):
        return plain(value.value, subject=subject)
    if callable(value):
        raise InvalidSpec(
            f"{subject} is {getattr(value, '__name__', value)!r}, which is not called; "
            "give a distribution with its bounds, as in uniform(0, 1)."
        )
    if isinstance(value, list | tuple) and any(isinstance(item, Domain) for item in value):
        raise InvalidSpec(
            f"{subject} is a list that holds a distribution; write a dict that names each item."
        )
    if written in _BY_USER:
        in_file = written is Written.IN_FILE
        if isinstance(value, list | tuple):
            raise _bare_list(plain(value, subject=subject), path, in_file=in_file)
        if isinstance(value, str):
            check_text(value, path, in_file=in_file)
    return plain(value, subject=subject)


def _bare_list(values: list[Any], path: str, *, in_file: bool) -> InvalidSpec:
    shown = repr(values) if len(repr(values)) <= LONGEST_SHOWN else "[…]"
    is_pair = [isinstance(value, int | float) for value in values] == [True, True]
    ways = [f"constant({shown}) to give it to every trial as it is"]
    if values:
        ways.insert(0, f"choice({shown}) for one of them")
    if is_pair and values[0] < values[1]:
        ways.insert(0, f"uniform({shown[1:-1]}) for a range")
    if in_file:
        calls = (way.partition(") ") for way in ways)
        ways = [f'{{"$": "{call})"}} {why}' for call, _, why in calls]
    return InvalidSpec(
        f"Parameter {path!r} is the bare list or tuple {shown}, which does not say how to sample. "
        f"Write {', or '.join(ways)}."
    )


def _read_domain(spec: Mapping[str, Any], path: str) -> Domain:
    try:
        return rebuild(spec, DISTRIBUTIONS, noun="distribution", key=KIND)
    except InvalidSpec as error:
        raise InvalidSpec(f"Parameter {path!r}: {error}") from None
