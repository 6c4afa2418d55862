"""
Searchers, which propose params: frozen dataclasses without SQL.

To add a searcher, write a file here and list its class in `BY_NAME`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from studydb.domain.searching import Searcher
from studydb.domain.specs.building import build, rebuild
from studydb.domain.specs.grammar import Call
from studydb.searchers.grid_search import GridSearch
from studydb.searchers.optuna_search import OptunaSearch
from studydb.searchers.random_search import RandomSearch

BY_NAME: dict[str, Callable[..., Searcher]] = {
    "RandomSearch": RandomSearch,
    "GridSearch": GridSearch,
    "OptunaSearch": OptunaSearch,
}

__all__ = ["BY_NAME", "GridSearch", "OptunaSearch", "RandomSearch", "from_call", "read"]


def from_call(call: Call) -> Searcher:
    """Make the searcher that a person typed; see `build`."""
    return build(call, BY_NAME, noun="searcher")


def read(spec: Mapping[str, Any] | None) -> Searcher | None:
    """Make the searcher that a study's row holds; None if the study has no searcher."""
    return None if spec is None else rebuild(spec, BY_NAME, noun="searcher")
