"""
Specs as people type them: spaces, schedulers and searchers; read by a grammar, never evaluated.

A parameter is "path=value": lr=loguniform(1e-4,1) or model/width=randint(1,4) sample, epochs=27 and
name=resnet are constants. The values are described in `reader`.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from studydb.domain.canonical import plain
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.distributions import DISTRIBUTIONS
from studydb.domain.space.domains import Domain
from studydb.domain.space.leaves import KIND, Constant, Written, check_key, constant
from studydb.domain.space.search_space import ORDER, Space
from studydb.domain.specs.reader import NAME, Call, read_all
from studydb.domain.specs.scanner import Scanner
from studydb.domain.text.other_tools import hint

__all__ = [
    "Call",
    "build",
    "parse_call",
    "parse_parameter",
    "parse_parameters",
    "parse_value",
    "read_space_file",
    "rebuild",
]

T = TypeVar("T")


def parse_value(text: str) -> Any:
    """
    Read one value.

    Returns:
        None, a bool, int, float, str, list or dict, or a `Call`.

    Raises:
        InvalidSpec: The text is none; the message names the column and what was expected.
    """
    return read_all(Scanner(text))


def parse_call(text: str) -> Call:
    """
    Read a call such as "ASHA(max_t=27, grace_period=1)"; a name alone is a call without arguments.

    Raises:
        InvalidSpec: The text is none; the message names the column and what was expected.
    """
    value = read_all(Scanner(text))
    if isinstance(value, Call):
        return value
    if isinstance(value, str) and NAME.fullmatch(value):
        return Call(value)
    raise Scanner(text).error("a call such as NAME(argument=1)")


def parse_parameter(text: str) -> tuple[str, Any]:
    """
    Read "path=value": a call is a distribution, anything else a constant.

    Returns:
        The path ("model/width") and its domain or constant, a list as `Constant` where it was
        said to be one; `parse_parameters` nests them.

    Raises:
        InvalidSpec: No "=", a bad path, a bad value, an unknown distribution or bad bounds.
    """
    path, equals, _ = text.partition("=")
    if not equals:
        raise Scanner(text).error("'=' after the name, as in lr=loguniform(1e-4,1)", at=len(text))
    value = read_all(Scanner(text, at=len(path) + 1))
    path = path.strip()
    for key in path.split("/"):
        check_key(key)
    if isinstance(value, Call):
        return path, _made(value, path)
    return path, plain(value, where=f"Parameter {path!r}")


def _made(call: Call, path: str) -> Domain | Constant:
    if call.name != "constant":
        return _distribution(call, path)
    return build(call, {"constant": constant}, what="distribution")


def _distribution(call: Call, path: str) -> Domain:
    try:
        return build(_gather_choices(call), DISTRIBUTIONS, what="distribution")
    except InvalidSpec as error:
        raise InvalidSpec(f"Parameter {path!r}: {error}") from None


def _gather_choices(call: Call) -> Call:
    """Let choice(relu,tanh) mean choice([relu,tanh])."""
    listed = len(call.args) == 1 and isinstance(call.args[0], list)
    if call.name != "choice" or listed or call.kwargs or _holds_call(call):
        return call
    return Call(call.name, (list(call.args),))


def _holds_call(call: Call) -> bool:
    return any(isinstance(value, Call) for value in (*call.args, *call.kwargs.values()))


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """
    Read several "path=value" into the nested dict that `Space.read` and `check_params` take.

    Raises:
        InvalidSpec: As `parse_parameter`; or a path comes twice, or lies below another's value.
    """
    tree: dict[str, Any] = {}
    made = {"": tree}
    for path, value in map(parse_parameter, texts):
        above, _, last = path.rpartition("/")
        parent = _parent(made, above, path)
        if last in parent:
            raise InvalidSpec(f"Parameter {path!r} is given twice; give each name one value.")
        parent[last] = value
    return tree


def _parent(made: dict[str, dict[str, Any]], parent: str, path: str) -> dict[str, Any]:
    if parent not in made:
        above, _, key = parent.rpartition("/")
        around = _parent(made, above, path)
        if key in around:
            raise InvalidSpec(
                f"Parameter {path!r} lies below {parent!r}, which has a value; rename one of them."
            )
        made[parent] = around[key] = {}
    return made[parent]


def build(call: Call, known: Mapping[str, Callable[..., T]], *, what: str) -> T:
    """
    Make what a call names, out of a closed list: "ASHA(max_t=27)" out of the schedulers.

    Args:
        call: As parsed.
        known: What may be called, by name; signatures are checked before anything is called.
        what: The noun for errors: "scheduler".

    Raises:
        InvalidSpec: An unknown name or argument, or whatever the callee refuses.
    """
    if call.name not in known:
        raise InvalidSpec(
            f"There is no {what} {call.name!r}; there are {', '.join(known)}."
            + hint(call.name, known)
        )
    if _holds_call(call):
        raise InvalidSpec(f"An argument of {call.name} is itself a call; give plain values.")
    signature = inspect.signature(known[call.name])
    wanted = ", ".join(signature.parameters) or "no arguments"
    for name in call.kwargs:
        if name not in signature.parameters:
            raise InvalidSpec(
                f"{call.name} has no argument {name!r}; it takes {wanted}."
                + hint(name, signature.parameters)
            )
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InvalidSpec(f"Cannot make {call.name}: {error}; it takes {wanted}.") from None
    return known[call.name](*call.args, **call.kwargs)


def rebuild(spec: Mapping[str, Any], known: Mapping[str, Callable[..., T]], *, what: str) -> T:
    """
    Make what a row holds, {"name": "ASHA", "max_t": 27}, out of a closed list.

    Raises:
        InvalidSpec: As `build`; or the row has no name.
    """
    options = dict(spec)
    if "name" not in options:
        raise InvalidSpec(f"The {what} {options!r} has no name; there are {', '.join(known)}.")
    return build(Call(str(options.pop("name")), kwargs=options), known, what=what)


def read_space_file(path: Path | str) -> Space:
    """
    Read a space from a JSON file, for `--space FILE`.

    A distribution is {"$": "loguniform(1e-4, 1)"}, or as `Space.to_json` writes it; a list that is
    meant as it is, is {"$": "constant([1, 2])"}; numbers and other texts are constants. A file with
    "$order" was written by `Space.to_json`, and its lists are constants.

    Raises:
        InvalidSpec: No such file, no JSON, or no space; the message names the file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        tree = json.loads(text, object_pairs_hook=_unique)
        if isinstance(tree, dict) and ORDER in tree:
            return Space.from_json(_parse_leaves(tree, ""))
        return Space.read(_parse_leaves(tree, ""), written=Written.IN_FILE)
    except OSError as error:
        raise InvalidSpec(f"Cannot read {str(path)!r}: {error.strerror}.") from None
    except RecursionError:
        raise InvalidSpec(f"{str(path)!r} is nested too deeply; flatten it.") from None
    except InvalidSpec as error:
        raise InvalidSpec(f"{str(path)!r}: {error}") from None
    except ValueError as error:
        raise InvalidSpec(f"{str(path)!r} is not JSON: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidSpec(f"The name {twice!r} is given twice; give each name one value.")
    return found


def _parse_leaves(tree: Any, prefix: str) -> Any:
    if not isinstance(tree, dict):
        return tree
    text = tree.get(KIND)
    if prefix and isinstance(text, str) and "(" in text:
        if len(tree) > 1:
            raise InvalidSpec(f"Parameter {prefix[:-1]!r} is {text!r} and more; give one of them.")
        return _made(parse_call(text), prefix[:-1])
    return {key: _parse_leaves(value, f"{prefix}{key}/") for key, value in tree.items()}
