"""
Chooses the cases that the default suite runs on only one of the two databases.

The folders `store` and `operations` test the SQL on both databases, and most tests in `FOLDERS` test
no other SQL. So the tests of a file in `FOLDERS`, and the cases of each test, take turns: one runs
on SQLite, the next on PostgreSQL. If a test has two parameters, each value of each parameter meets
both databases. A test with the marker `each_database` or `row` runs on both databases. The cases of
`LONG_TESTS` take turns whatever their folder and markers. The fixture `sqlite_alone` runs tests on
SQLite only.

No case is left out if an argument of pytest names a single test, or if STUDYDB_EVERY_CASE or
STUDYDB_NIGHTLY is 1. `scripts/mutations` sets STUDYDB_EVERY_CASE.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

FOLDERS = ("conformance", "integrations", "worker")
LONG_TESTS = ("test_study_machine.py",)
"""Files of long tests, whose cases take turns even if the tests have the marker `row`."""

DATABASES = ("sqlite", "postgresql")
DATABASE = "storage_url"


Seen = dict[tuple[str, tuple[str, ...]], dict[object, int]]
"""
Two kinds of entries. The key (file, ()) has the position of each test in the file, by the test's
name. The key (test, parameters) has the position of each combination of these parameters' values,
by the tuple of the values' `id()`.
"""


class Case(NamedTuple):
    """
    A case of a test.

    Attributes:
        test: The names of the file and of the test.
        database: The database on which the case runs.
        positions: The position of the test in its file; then, for each group of parameters, the
            position of the case's values. The parameters of one mark `parametrize` are a group,
            and so is each other parameter. The database alone is not counted as a group.
    """

    test: str
    database: str
    positions: tuple[int, ...]


def left_out(cases: Iterable[Case]) -> set[Case]:
    """Choose the cases to leave out, so that tests and cases run on the databases by turns."""
    every = set(cases)
    return {
        case
        for case in every
        if {case._replace(database=other) for other in DATABASES} <= every
        and DATABASES[sum(case.positions) % 2] != case.database
    }


def left_out_by_turns(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Find the cases to leave out."""
    seen: Seen = defaultdict(dict)
    cases = {item: case for item in items if (case := _case(item, seen)) is not None}
    dropped = left_out(cases.values())
    return {item for item, case in cases.items() if case in dropped}


def _may_take_turns(item: pytest.Item) -> bool:
    return item.path.name in LONG_TESTS or (
        item.path.parent.name in FOLDERS
        and not any(map(item.get_closest_marker, ("each_database", "row")))
    )


def _case(item: pytest.Item, seen: Seen) -> Case | None:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get(DATABASE) not in DATABASES or not _may_take_turns(item):
        return None
    test = f"{item.path.name}::{getattr(item, 'originalname', '')}"
    of_file = seen[item.path.name, ()]
    marked = [mark.args[0] for mark in item.iter_markers("parametrize")]
    groups = [re.findall(r"\w+", one) if isinstance(one, str) else [*one] for one in marked]
    groups += [[name] for name in call.params if not any(name in group for group in groups)]
    positions = [of_file.setdefault(test, len(of_file))]
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

    A file of such tests has the line `storage_url = sqlite_alone`, which replaces the fixture
    `storage_url` of `tests/conftest.py`.
    """
    return sqlite_url
