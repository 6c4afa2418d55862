"""The leaves of a search space: names, distributions and constants, read from Python or JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

from studydb.domain.canonical import MAX_DEPTH, plain, plain_text
from studydb.domain.distributions import DISTRIBUTIONS
from studydb.domain.domains import Domain
from studydb.domain.errors import InvalidSpec
from studydb.domain.near import did_you_mean

KIND = "$"
"""The key that marks a distribution in JSON; no name of the user's may begin with it."""


def walk(tree: Mapping[Any, Any], *, stored: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """
    Go through a nested dict to its leaves.

    Args:
        tree: Names with distributions, constants, or dicts of the same.
        stored: Whether {"$": kind, …} is a distribution; in a user's dict it is an error.
        prefix: The path above, with "/" at its end; "" at the top.

    Yields:
        Each leaf's path and its domain or plain constant, in the order of the dicts.

    Raises:
        InvalidSpec: A name, distribution or constant that cannot be; the message has its path.
    """
    if prefix.count("/") > MAX_DEPTH:
        raise InvalidSpec(
            f"The space is nested more than {MAX_DEPTH} levels deep at {prefix[:40]!r}; flatten it."
        )
    for key, value in tree.items():
        path = prefix + check_key(key, prefix=prefix)
        if not isinstance(value, Mapping) or not value:
            yield path, _read_constant(value, path)
        elif stored and KIND in value:
            yield path, _read_domain(value, path)
        else:
            yield from walk(value, stored=stored, prefix=f"{path}/")


def check_key(key: Any, *, prefix: str = "") -> str:
    """
    Check one part of a parameter's path.

    Raises:
        InvalidSpec: It is no text, empty, holds a "/", or begins with "$".
    """
    place = f" under {prefix[:-1]!r}" if prefix else ""
    if not isinstance(key, str):
        raise InvalidSpec(f"The name {key!r}{place} is no text; names of parameters must be.")
    if not key:
        raise InvalidSpec(f"There is an empty name{place}; names of parameters have characters.")
    if "/" in key:
        raise InvalidSpec(f"The name {key!r}{place} holds a '/', which joins names; nest dicts.")
    if key.startswith(KIND):
        raise InvalidSpec(f"The name {key!r}{place} begins with '$', which is reserved; rename it.")
    return plain_text(key, where=f"The name {key!r}{place}")


def leaf_json(leaf: Any) -> Any:
    """A distribution's JSON form, or the constant itself."""
    return leaf.to_json() if isinstance(leaf, Domain) else leaf


def _read_constant(value: Any, path: str) -> Any:
    if isinstance(value, Domain):
        return value
    if callable(value):
        raise InvalidSpec(
            f"Parameter {path!r} is {getattr(value, '__name__', value)!r}, which is not called; "
            "give a distribution with its bounds, as in uniform(0, 1)."
        )
    if isinstance(value, list | tuple) and any(isinstance(item, Domain) for item in value):
        raise InvalidSpec(
            f"Parameter {path!r} is a list that holds a distribution; give each a name of its own."
        )
    return plain(value, where=f"Parameter {path!r}")


def _read_domain(spec: Mapping[str, Any], path: str) -> Domain:
    kind = spec[KIND]
    if not isinstance(kind, str) or kind not in DISTRIBUTIONS:
        raise InvalidSpec(
            f"Parameter {path!r} has the distribution {kind!r}, which is unknown; "
            f"there are {', '.join(DISTRIBUTIONS)}." + did_you_mean(str(kind), DISTRIBUTIONS)
        )
    wanted = DISTRIBUTIONS[kind].arguments()
    arguments = {name: value for name, value in spec.items() if name != KIND}
    if set(arguments) != set(wanted):
        raise InvalidSpec(
            f"Parameter {path!r}: {kind} takes {', '.join(wanted)}, "
            f"not {', '.join(map(str, arguments)) or 'nothing'}."
        )
    try:
        return DISTRIBUTIONS[kind](**arguments)
    except InvalidSpec as error:
        raise InvalidSpec(f"Parameter {path!r}: {error}") from None
