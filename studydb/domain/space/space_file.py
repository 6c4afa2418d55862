"""Spaces in JSON files, for `--space FILE`."""

import json
from pathlib import Path
from typing import Any

from studydb.domain.errors import InvalidSpec
from studydb.domain.space.domains import KIND
from studydb.domain.space.leaves import Written
from studydb.domain.space.parameters import leaf_from_call
from studydb.domain.space.search_space import ORDER, Space
from studydb.domain.specs.grammar import parse_call
from studydb.domain.text.display import shortened


def read_space_file(path: Path | str) -> Space:
    """
    Read a space from a JSON file.

    A distribution is {"$": "loguniform(1e-4, 1)"}, or has the form of `Space.to_json`. A list that
    every trial receives unchanged is {"$": "constant([1, 2])"}. Numbers and texts are constants. A
    file with the key "$order" was written by `Space.to_json`; its lists are constants.

    Raises:
        InvalidSpec: The file cannot be read or does not hold a space; the message names the file.
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
            others = ", ".join(repr(key) for key in tree if key != KIND)
            raise InvalidSpec(
                f"Parameter {prefix[:-1]!r} is {shortened(text, 200)!r}, but has other keys beside "
                f"{KIND!r}: {shortened(others, 200)}. Remove these keys."
            )
        return leaf_from_call(parse_call(text), prefix[:-1])
    return {key: _parse_leaves(value, f"{prefix}{key}/") for key, value in tree.items()}
