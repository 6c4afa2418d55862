"""Which cases of tests the default suite runs on only one database."""

import ast
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.turns import DATABASE, DATABASES, FOLDERS, Case, left_out, left_out_by_turns

TESTS = Path(__file__).parents[1]


def cases(test, *sizes, at=0):
    places = [(at, *place) for place in itertools.product(*map(range, sizes))]
    return {Case(test, database, place) for place in places for database in DATABASES}


def test_each_of_several_cases_runs_on_one_database_and_each_value_of_a_parameter_on_both():
    every = cases("several", 3, 4)

    kept = every - left_out(every)

    places = itertools.product(range(3), range(4))
    assert sorted(case.positions for case in kept) == sorted((0, *place) for place in places)
    for parameter, size in enumerate((3, 4), start=1):
        met = {(case.positions[parameter], case.database) for case in kept}
        assert met == set(itertools.product(range(size), DATABASES))


def test_tests_with_a_single_case_run_on_the_databases_by_turns_within_their_file():
    every = set().union(*(cases(f"test {at}", at=at) for at in range(4)))

    kept = sorted(every - left_out(every), key=lambda case: case.positions)

    assert [case.database for case in kept] == [*DATABASES, *DATABASES]


def test_case_that_has_one_database_only_is_never_left_out():
    alone = {Case("alone", "postgresql", (0, place)) for place in range(4)}

    assert left_out(alone) == set()


class Item:
    """Stands for a test that pytest has collected in `integrations/`."""

    def __init__(self, name, database, *markers):
        self.originalname, self.markers = name, markers
        self.path = TESTS / "integrations" / "test_any.py"
        self.callspec = SimpleNamespace(params={DATABASE: database})

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def iter_markers(self, _name):
        return iter(())


def test_first_test_of_a_file_runs_on_sqlite_and_the_second_on_postgresql():
    items = [Item(name, database) for name in ("first", "second") for database in DATABASES]

    dropped = left_out_by_turns(items)

    kept = [(item.originalname, item.callspec.params[DATABASE]) for item in {*items} - dropped]
    assert sorted(kept) == [("first", "sqlite"), ("second", "postgresql")]


@pytest.mark.parametrize("marker", ["each_database", "row"])
def test_marked_test_runs_on_both_databases(marker):
    items = [Item("marked", database, marker) for database in DATABASES]

    assert left_out_by_turns(items) == set()


def test_each_test_that_asks_which_database_it_has_is_marked():
    found = [
        f"{path.name}::{node.name}"
        for folder in FOLDERS
        for path in (TESTS / folder).glob("test_*.py")
        if "pytestmark = pytest.mark.each_database" not in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if ".postgresql" in ast.unparse(node)
        if not any("each_database" in ast.unparse(one) for one in node.decorator_list)
    ]

    assert found == []
