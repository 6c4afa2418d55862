"""Which cases of tests the default suite leaves to the nightly run."""

import itertools

from harness.turns import DATABASES, Case, left_out


def cases(test, *sizes):
    places = itertools.product(*map(range, sizes))
    return {Case(test, database, place) for place in places for database in DATABASES}


def test_each_of_several_cases_runs_on_one_database_and_each_value_of_a_parameter_on_both():
    every = cases("several", 3, 4)

    kept = every - left_out(every)

    assert sorted(case.positions for case in kept) == sorted(itertools.product(range(3), range(4)))
    for parameter, size in enumerate((3, 4)):
        met = {(case.positions[parameter], case.database) for case in kept}
        assert met == set(itertools.product(range(size), DATABASES))


def test_a_test_with_a_single_case_per_database_runs_on_both_databases():
    assert left_out(cases("one") | cases("another", 1)) == set()


def test_case_that_has_one_database_only_is_never_left_out():
    alone = {Case("alone", "postgresql", (place,)) for place in range(4)}

    assert left_out(alone) == set()
