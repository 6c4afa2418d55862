"""Which cases of tests the default suite leaves to the nightly run."""

import itertools

from harness.turns import DATABASES, Case, left_out


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


def test_tests_of_a_file_that_have_a_single_case_run_on_the_databases_by_turns():
    every = set().union(*(cases(f"test {at}", at=at) for at in range(4)))

    kept = sorted(every - left_out(every), key=lambda case: case.positions)

    assert [case.database for case in kept] == [*DATABASES, *DATABASES]


def test_case_that_has_one_database_only_is_never_left_out():
    alone = {Case("alone", "postgresql", (0, place)) for place in range(4)}

    assert left_out(alone) == set()
