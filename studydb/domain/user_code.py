"""A stop rule or scheduler in the user's code, described by its import path and its options."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from studydb.domain.canonical import canonical_json, plain
from studydb.domain.errors import InvalidSpec
from studydb.domain.specs.grammar import parse_call

MAX_OPTIONS_BYTES = 64 << 10

_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
IS_PATH = re.compile(rf"\s*(?P<module>{_PATH}):(?P<call>{_PATH}\s*(?:\(.*)?)", re.DOTALL)
"""Matches a text such as "my_rules:TooSlow(limit=3)", but not "loss>=3" or 'Plateau("loss")'."""

Described = tuple[str, dict[str, Any]]
"""The import path "module:Class", and the arguments by name, as plain values."""


def described_text(text: str, *, noun: str) -> Described:
    """
    Read a text such as "my_rules:TooSlow(limit=3)"; nothing is imported.

    Args:
        noun: The word for the object in errors, such as "stop rule".

    Raises:
        InvalidSpec: What follows the ":" is neither a name nor a call, an option has no name or is
            not a plain value, or the options are too large.
    """
    match = IS_PATH.fullmatch(text)
    assert match is not None, "the caller compares the text with IS_PATH"
    call = parse_call(match["call"])
    path = f"{match['module']}:{call.name}"
    if call.args:
        raise InvalidSpec(
            f"An option of the {noun} {path} has no name; write for example "
            f"'{path}(limit=3)' with the names that the class gives its options."
        )
    if call.holds_call:
        raise InvalidSpec(f"An option of the {noun} {path} is itself a call; give plain values.")
    return path, _plain_options(path, call.kwargs, noun)


def described_object(given: object, *, noun: str, example: str) -> Described:
    """
    Describe an object of a dataclass by its class and the fields that `__init__` takes.

    Args:
        noun: The word for the object in errors, such as "stop rule".
        example: An object for the message, such as "TooSlow(limit=3)".

    Raises:
        InvalidSpec: `given` is itself a class, its class is not a dataclass or is defined where
            workers cannot import it, an option is not a plain value, or the options are too large.
    """
    kind = type(given)
    name = kind.__qualname__
    if isinstance(given, type) or not is_dataclass(given):
        subject = f"The {noun} {given.__name__ if isinstance(given, type) else name}"
        raise InvalidSpec(
            f"{subject} is not an object of a dataclass. Write @dataclass(frozen=True) before its "
            f"class, and give an object, such as {example}."
        )
    if kind.__module__ == "__main__" or "<locals>" in name:
        raise InvalidSpec(
            f"The {noun} {name} is defined in {kind.__module__}, where workers cannot import "
            "it. Move its class to the top level of a module, and import it from there."
        )
    path = f"{kind.__module__}:{name}"
    options = {each.name: getattr(given, each.name) for each in fields(given) if each.init}
    return path, _plain_options(path, options, noun)


def _plain_options(path: str, options: Mapping[str, Any], noun: str) -> dict[str, Any]:
    subject = "The option {} of the " + f"{noun} {path}"
    known = {
        name: plain(value, subject=subject.format(repr(name))) for name, value in options.items()
    }
    if len(canonical_json(known)) > MAX_OPTIONS_BYTES:
        raise InvalidSpec(
            f"The options of the {noun} {path} have more than {MAX_OPTIONS_BYTES >> 10} KiB. "
            "Keep large data in a file, and give the file's path."
        )
    return known


def is_same_code(
    path: str, options: Mapping[str, Any], code_path: str, code_options: Mapping[str, Any] | None
) -> bool:
    """Whether signed code (`code_path`, `code_options`) is what the study's row describes."""
    return (
        code_options is not None
        and code_path == path
        and canonical_json(code_options) == canonical_json(options)
    )


def code_text(path: str, options: Mapping[str, Any]) -> str:
    """Write a description as a call, such as "my_rules:TooSlow(limit=3)"."""
    arguments = ", ".join(f"{name}={canonical_json(value)}" for name, value in options.items())
    return f"{path}({arguments})"
