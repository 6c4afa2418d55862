"""
Constants that look like distributions, such as "uniform(0, 1)" in quotes.

Every trial would receive the same text or dict, and nothing would be sampled. So such a constant is
refused; the error shows how to write the distribution, and how to keep the constant.
"""

import re
from collections.abc import Mapping
from typing import Any

from studydb.domain.canonical import is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.distributions import DISTRIBUTIONS
from studydb.domain.space.domains import Domain
from studydb.domain.text.display import shortened
from studydb.domain.text.other_tools import SAMPLES, WORDS

LONGEST_SHOWN = 80
"""The limit for a value in an error, in characters."""

_CALL = re.compile(
    r"\s*(?:[A-Za-z_]\w*\.)*(?P<name>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)\s*", re.DOTALL
)
# With possessive quantifiers (`++`, `*+`), a match takes time in proportion to the text's length.
_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
_SEPARATOR = r"(?:\s*+(?:\.\.\.?|\N{HORIZONTAL ELLIPSIS})\s*+|\s++(?:to|-)\s++)"
_RANGE = re.compile(rf"\s*+(?P<lower>{_NUMBER}){_SEPARATOR}(?P<upper>{_NUMBER})\s*+")
_PAIR = re.compile(rf"\s*+[\[(]\s*+(?P<lower>{_NUMBER})\s*+,\s*+(?P<upper>{_NUMBER})\s*+[\])]\s*+")

_KIND_KEYS = ("type", "_type", "distribution", "dist", "name", "sampler", "$type")
_BOUNDS = (("lower", "upper"), ("low", "high"), ("min", "max"), ("lo", "hi"))
_KEYS_BESIDE_BOUNDS = {"log", "step", "q", "base", "type", "_type", "distribution", "name"}


def check_text(text: str, path: str, *, in_file: bool) -> None:
    """
    Refuse a text that looks like a distribution or a range.

    Args:
        in_file: Whether the space is in a JSON file, where a distribution is {"$": …}.

    Raises:
        InvalidSpec: The text is refused; the message shows what to write instead.
    """
    if (call := _CALL.fullmatch(text)) and (name := _known_name(call["name"])):
        written = f"{name}({call['arguments']})" if name in DISTRIBUTIONS else WORDS[name]
    elif found := _RANGE.fullmatch(text) or _PAIR.fullmatch(text):
        written = f"uniform({found['lower']}, {found['upper']})"
    else:
        return
    raise _refusal(repr(text), "a text", path, written, in_file=in_file)


def check_dict(value: Mapping[Any, Any], path: str, *, in_file: bool) -> None:
    """
    Refuse a dict that describes a distribution by its keys, as in files of other tools.

    Raises:
        InvalidSpec: The dict is refused; the message shows what to write instead.
    """
    if any(isinstance(item, Mapping | Domain) for item in value.values()):
        return  # a nested part of the space
    written = _distribution_of_dict(value)
    if written is not None:
        shown = repr(dict(value))
        raise _refusal(shown, "a dict of constants", path, written, in_file=in_file)


def _distribution_of_dict(value: Mapping[Any, Any]) -> str | None:
    bounds = next(
        (
            (value[low], value[high])
            for low, high in _BOUNDS
            if low in value and high in value
            if is_number(value[low]) and is_number(value[high])
        ),
        None,
    )
    for key in _KIND_KEYS:
        kind = value.get(key)
        name = _known_name(kind) if isinstance(kind, str) else None
        if name is not None and len(value) > 1:
            return _call_text(name, bounds)
    bound_keys = {key for pair in _BOUNDS for key in pair} | _KEYS_BESIDE_BOUNDS
    if bounds is not None and bound_keys.issuperset(value):
        return _call_text("loguniform" if value.get("log") is True else "uniform", bounds)
    return None


def _call_text(name: str, bounds: tuple[Any, Any] | None) -> str:
    if name not in DISTRIBUTIONS:
        return WORDS[name]
    if bounds is None:
        return f"{name}(…)"
    return f"{name}({bounds[0]!r}, {bounds[1]!r})"


def _known_name(name: str) -> str | None:
    folded = name.replace("-", "_").casefold()
    return folded if folded in DISTRIBUTIONS or folded in SAMPLES else None


def _refusal(shown: str, what: str, path: str, written: str, *, in_file: bool) -> InvalidSpec:
    shown = shortened(shown, LONGEST_SHOWN)
    key = path.rpartition("/")[2]
    sample = f'{{"$": "{written}"}}' if in_file else f"{key}={written}"
    keep = f'{{"$": "constant({shown})"}}' if in_file else f"{key}=constant({shown})"
    return InvalidSpec(
        f"Parameter {path!r} is {what}, {shown}, which would not be sampled. Write {sample} to "
        f"sample from it, or {keep} to give it to every trial as it is."
    )
