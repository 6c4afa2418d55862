"""Make a spec from a call that a person typed, or from the JSON of a row."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from studydb.domain.errors import InvalidSpec
from studydb.domain.specs.grammar import Call
from studydb.domain.specs.spec import unknown_option
from studydb.domain.text.other_tools import hint

T = TypeVar("T")


def build(call: Call, known: Mapping[str, Callable[..., T]], *, noun: str) -> T:
    """
    Make the object that a call names, such as "ASHA(max_t=27)".

    Args:
        known: The functions and classes that may be called, by name.
        noun: The word for the object in errors, such as "scheduler".

    Raises:
        InvalidSpec: The name or an argument is unknown, an argument is missing or is itself a call,
            or the function or class refuses an argument.
    """
    if call.name not in known:
        raise InvalidSpec(
            f"There is no {noun} {call.name!r}; there are {', '.join(known)}."
            + hint(call.name, known)
        )
    if call.holds_call:
        raise InvalidSpec(f"An argument of {call.name} is itself a call; give plain values.")
    signature = inspect.signature(known[call.name])
    takes = ", ".join(signature.parameters) or "no arguments"
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for name in call.kwargs:
        if name not in signature.parameters and not takes_any:
            raise unknown_option(call.name, name, signature.parameters)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InvalidSpec(f"Cannot make {call.name}: {error}; it takes {takes}.") from None
    return known[call.name](*call.args, **call.kwargs)


def rebuild(
    spec: Mapping[str, Any], known: Mapping[str, Callable[..., T]], *, noun: str, key: str = "name"
) -> T:
    """
    Make the object that a row describes, such as {"name": "ASHA", "max_t": 27}.

    An option that the row lacks has the value in the class's `absent` (see `Spec`), or its default
    if `absent` does not name the option.

    Args:
        known, noun: See `build`.
        key: The key in `spec` that holds the name.

    Raises:
        InvalidSpec: `build` refuses the spec, or the spec has no name.
    """
    options = dict(spec)
    if key not in options:
        raise InvalidSpec(
            f"The {noun} {options!r} has no name; {key!r} must be one of {', '.join(known)}."
        )
    name = str(options.pop(key))
    absent = getattr(known.get(name), "absent", {})
    return build(Call(name, kwargs={**absent, **options}), known, noun=noun)
