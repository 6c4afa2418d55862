"""
Chooses the tests that a run leaves out. The suite is then short enough to run after each change.

Three markers leave tests out, and so does the module `turns`. `slow` leaves out a test of some
seconds, unless `scripts/check` runs, or the run names only files, or asks for the marker.
`nightly` leaves out a test that takes long; a test of the default suite tests the same promise in
less time, or in fewer situations. `sampled(n)` leaves out most cases of an exhaustive test: of the
cases that `turns` keeps for a database, one in `n` runs, and at least one.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

import pytest

from harness import turns

EVERY_CASE = ("STUDYDB_EVERY_CASE", "STUDYDB_NIGHTLY")
"""
If one of these variables is 1, every test runs. With STUDYDB_NIGHTLY, some tests also take their
long forms.
"""


SLOW = "STUDYDB_SLOW"
"""If this variable is 1, the tests with the marker `slow` run. `scripts/check` sets it."""


def every_case_runs() -> bool:
    return "1" in map(os.environ.get, EVERY_CASE)


def left_out(items: Sequence[pytest.Item], config: pytest.Config) -> set[pytest.Item]:
    """
    Find the tests that this run leaves out.

    No test is left out if one of the variables `EVERY_CASE` is 1, or if an argument of pytest names
    a single test (`file.py::test_name`).
    """
    if every_case_runs() or any("::" in argument for argument in config.args):
        return set()
    are_named = all(argument.endswith(".py") for argument in config.args)
    slow_tests_run = os.environ.get(SLOW) == "1" or are_named or "slow" in config.option.markexpr
    markers = ("nightly",) if slow_tests_run else ("nightly", "slow")
    marked = {item for item in items if any(map(item.get_closest_marker, markers))}
    marked |= turns.left_out_by_turns(items)
    return marked | _left_out_of_samples([item for item in items if item not in marked])


def sample(names: Sequence[str], one_in: int) -> set[str]:
    """
    Choose one name in `one_in`, and at least one.

    The choice is by checksum, so it is the same in each process, and the chosen cases differ in
    several of their parameters. If every fourth case ran, one parameter could always have the
    same value.
    """
    return set(sorted(names, key=lambda name: crc32(name.encode()))[: -(-len(names) // one_in)])


def _left_out_of_samples(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    of_tests: dict[tuple[str, int, object], dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        mark, call = item.get_closest_marker("sampled"), getattr(item, "callspec", None)
        if mark is not None and call is not None:
            database = call.params.get(turns.DATABASE)
            of_tests[item.nodeid.partition("[")[0], mark.args[0], database][item.nodeid] = item
    return {
        cases[name]
        for (_, one_in, _), cases in of_tests.items()
        for name in cases.keys() - sample([*cases], one_in)
    }
