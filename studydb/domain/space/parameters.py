"""
Parameters as people type them: "path=value".

In "lr=loguniform(1e-4,1)" the value is a distribution; in "epochs=27" it is a constant.
"""

from collections.abc import Iterable
from typing import Any

from studydb.domain.canonical import plain
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.distributions import DISTRIBUTIONS
from studydb.domain.space.domains import Domain
from studydb.domain.space.leaves import Constant, check_key, constant
from studydb.domain.specs.building import build
from studydb.domain.specs.grammar import Call, misread, parse_value


def parse_parameter(text: str) -> tuple[str, Any]:
    """
    Read "path=value".

    A call is a distribution, except the call `constant(…)`. Any other value is a constant.

    Returns:
        The path ("model/width") and its domain or constant; `constant(…)` gives a `Constant`.

    Raises:
        InvalidSpec: The "=" is missing, or the path, the value or the distribution is wrong.
    """
    path, equals, _ = text.partition("=")
    if not equals:
        raise misread(text, len(text), "'=' after the name, as in lr=loguniform(1e-4,1)")
    value = parse_value(text, start=len(path) + 1)
    path = path.strip()
    for key in path.split("/"):
        check_key(key)
    if isinstance(value, Call):
        return path, leaf_from_call(value, path)
    return path, plain(value, subject=f"Parameter {path!r}")


def leaf_from_call(call: Call, path: str) -> Domain | Constant:
    """
    Make the distribution or `Constant` that a call names; choice(a, b) means choice([a, b]).

    Raises:
        InvalidSpec: The distribution or its bounds are wrong; the message names the path.
    """
    listed = len(call.args) == 1 and isinstance(call.args[0], list)
    if call.name == "choice" and not (listed or call.kwargs or call.holds_call):
        call = Call(call.name, (list(call.args),))
    try:
        if call.name == "constant":
            return build(call, {"constant": constant}, noun="distribution")
        return build(call, DISTRIBUTIONS, noun="distribution")
    except InvalidSpec as error:
        raise InvalidSpec(f"Parameter {path!r}: {error}") from None


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """
    Read texts "path=value" into the nested dict that `Space.read` and `check_params` take.

    Raises:
        InvalidSpec: A text is wrong, a path is given twice, or a path lies below another path.
    """
    tree: dict[str, Any] = {}
    dicts = {"": tree}
    for path, value in map(parse_parameter, texts):
        above, _, last = path.rpartition("/")
        parent = _dict_at(above, dicts, path)
        if last in parent:
            raise InvalidSpec(f"Parameter {path!r} is given twice; give each name one value.")
        parent[last] = value
    return tree


def _dict_at(parent: str, dicts: dict[str, dict[str, Any]], path: str) -> dict[str, Any]:
    if parent not in dicts:
        above, _, key = parent.rpartition("/")
        around = _dict_at(above, dicts, path)
        if key in around:
            raise InvalidSpec(
                f"Parameter {path!r} lies below {parent!r}, which has a value; rename one of them."
            )
        dicts[parent] = around[key] = {}
    return dicts[parent]
