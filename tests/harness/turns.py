"""
Chooses the cases that the default suite runs on only one of the two databases.

The tests in `FOLDERS` do not test SQL; the folders `store` and `operations` test the SQL on both
databases. So if a test in `FOLDERS` has several cases, and no guard or row of rows.md names the
test, the cases take turns: one runs on SQLite, the next on PostgreSQL. If a test has two
parameters, each value of each parameter meets both databases. The cases of `LONG_TESTS` take turns,
too. The fixture `sqlite_alone` runs tests on SQLite only.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = ("conformance", "integrations", "worker")
LONG_TESTS = ("test_study_machine.py",)
"""
Files whose cases take turns although guards and rows of rows.md name their tests, because these
tests take long. No case is left out if an argument of pytest names a single test, as in most runs
of `scripts/mutations`.
"""

GUARDS = Path(__file__).parents[2] / "scripts" / "guards"
DATABASES = ("sqlite", "postgresql")
DATABASE = "storage_url"


Seen = dict[tuple[str, tuple[str, ...]], dict[tuple[int, ...], int]]
"""For each test and group of parameters: the position of each tuple of values, by their `id()`."""


class Case(NamedTuple):
    """A case of a test: its database, and the positions of the values of its other parameters."""

    test: str
    database: str
    positions: tuple[int, ...]


def left_out(cases: Iterable[Case]) -> set[Case]:
    """Choose the cases to leave out, so that the cases of a test run on the databases by turns."""
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


def left_out_by_turns(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """
    Find the cases to leave out.

    A test that a guard or a row of rows.md names runs all cases, unless `LONG_TESTS` has its file.
    """
    guarding = _named_by_guards()
    seen: Seen = defaultdict(dict)
    cases = {item: case for item in items if (case := _case(item, guarding, seen)) is not None}
    dropped = left_out(cases.values())
    return {item for item, case in cases.items() if case in dropped}


def _named_by_guards() -> set[str]:
    texts = [path.read_text() for path in GUARDS.glob("*.toml")]
    return {name for text in texts for name in re.findall(r'"(test_\w+\.py(?:::\w+)?)"', text)}


def _may_take_turns(item: pytest.Item, test: str, guarding: set[str]) -> bool:
    return (
        item.path.parent.name in FOLDERS
        and not item.get_closest_marker("row")
        and not {test, item.path.name} & guarding
    )


def _case(item: pytest.Item, guarding: set[str], seen: Seen) -> Case | None:
    call = getattr(item, "callspec", None)
    test = f"{item.path.name}::{getattr(item, 'originalname', '')}"
    if (
        call is None
        or call.params.get(DATABASE) not in DATABASES
        or not (item.path.name in LONG_TESTS or _may_take_turns(item, test, guarding))
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

    A file of such tests has the line `storage_url = sqlite_alone`, which replaces `storage_url`.
    """
    return sqlite_url
