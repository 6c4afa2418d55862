"""
Chooses the cases of tests that the default suite runs on one of the two databases.

In `FOLDERS` the subject of a test with several cases is not its SQL, which `store/` and
`operations/` test on both databases. So its cases take turns: one runs on SQLite, the next on
PostgreSQL. If a test has two parameters, each value of each parameter meets both databases.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = ("conformance", "integrations", "worker")
GUARDS = Path(__file__).parents[2] / "scripts" / "guards"
DATABASES = ("sqlite", "postgresql")
DATABASE = "storage_url"


Seen = dict[tuple[str, tuple[str, ...]], dict[tuple[int, ...], int]]
"""For each test and its parameters: the positions of the values, by their identity."""


class Case(NamedTuple):
    """A case of a test: the test's name, its database, and the position of each other parameter."""

    test: str
    database: str
    positions: tuple[int, ...]


def left_out(cases: Iterable[Case]) -> set[Case]:
    """Choose the cases to leave out: if a test has several, each runs on one database, in turn."""
    of_tests: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        of_tests[case.test].append(case)
    return {
        case
        for of_test in of_tests.values()
        if len({case.positions for case in of_test}) > 1
        for case in of_test
        if {(case.test, other, case.positions) for other in DATABASES} <= set(of_test)
        and DATABASES[sum(case.positions) % 2] != case.database
    }


def left_to_the_nightly_run(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Find the tests to leave out; tests that a guard or a row of rows.md names run in full."""
    if os.environ.get("STUDYDB_NIGHTLY") == "1":
        return set()
    guarding = _named_by_guards()
    seen: Seen = defaultdict(dict)
    cases = {item: case for item in items if (case := _case(item, guarding, seen)) is not None}
    dropped = left_out(cases.values())
    return {item for item, case in cases.items() if case in dropped}


def _named_by_guards() -> set[str]:
    texts = [path.read_text() for path in GUARDS.glob("*.toml")]
    return {name for text in texts for name in re.findall(r'"(test_\w+\.py(?:::\w+)?)"', text)}


def _case(item: pytest.Item, guarding: set[str], seen: Seen) -> Case | None:
    call = getattr(item, "callspec", None)
    test = f"{item.path.name}::{getattr(item, 'originalname', '')}"
    if (
        item.path.parent.name not in FOLDERS
        or call is None
        or call.params.get(DATABASE) not in DATABASES
        or item.get_closest_marker("row")
        or {test, item.path.name} & guarding
    ):
        return None
    marked = [mark.args[0] for mark in item.iter_markers("parametrize")]
    groups = [re.findall(r"\w+", one) if isinstance(one, str) else [*one] for one in marked]
    groups += [[name] for name in call.params if not any(name in group for group in groups)]
    positions = []
    for names in groups:
        if names != [DATABASE]:
            known = seen[test, tuple(names)]
            values = tuple(id(call.params[each]) for each in names)
            positions.append(known.setdefault(values, len(known)))
    return Case(test, call.params[DATABASE], tuple(positions))


@pytest.fixture
def sqlite_alone(sqlite_url: str) -> str:
    """
    Run a test on SQLite alone, because what it checks does not depend on the database.

    A file of such tests has the line `storage_url = sqlite_alone`, which replaces the fixture.
    """
    return sqlite_url
