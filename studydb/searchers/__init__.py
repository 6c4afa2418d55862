"""Proposers of configurations, pure and frozen. A new one: a file here and a line in `BY_NAME`."""

from collections.abc import Callable, Mapping
from typing import Any

from studydb.domain.specs.grammar import Call, build, rebuild
from studydb.domain.view import Searcher
from studydb.searchers.grid_search import GridSearch
from studydb.searchers.random_search import RandomSearch

BY_NAME: dict[str, Callable[..., Searcher]] = {
    "RandomSearch": RandomSearch,
    "GridSearch": GridSearch,
}

__all__ = ["BY_NAME", "GridSearch", "RandomSearch", "from_call", "read"]


def from_call(call: Call) -> Searcher:
    """
    Make what a command line names: parse_call("RandomSearch(seed=0)").

    Raises:
        InvalidSpec: No such searcher, or one that takes other arguments.
    """
    return build(call, BY_NAME, what="searcher")


def read(spec: Mapping[str, Any] | None) -> Searcher | None:
    """
    Read what `to_json` wrote; None, for a study that proposes nothing, stays None.

    Raises:
        InvalidSpec: No such searcher, or one that takes other arguments.
    """
    return None if spec is None else rebuild(spec, BY_NAME, what="searcher")
