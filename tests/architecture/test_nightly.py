"""Which tests a run leaves out because of the markers `slow`, `nightly` and `sampled`."""

from collections import Counter

import pytest
from harness.nightly import EVERY_CASE, SLOW, sample

pytest_plugins = ["pytester"]

CONFTEST = """
from harness import nightly

def pytest_configure(config):
    config.addinivalue_line("markers", "slow")
    config.addinivalue_line("markers", "nightly")
    config.addinivalue_line("markers", "sampled(n)")

def pytest_collection_modifyitems(config, items):
    left_out = nightly.left_out(items, config)
    items[:] = [item for item in items if item not in left_out]
"""

TESTS = """
import pytest

def test_short(): ...

@pytest.mark.slow
def test_of_some_seconds(): ...

@pytest.mark.nightly
def test_long(): ...

@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", range(9))
def test_exhaustive(case): ...
"""


QUICK = {"test_short": 1, "test_exhaustive": 3}
SUITE = {**QUICK, "test_of_some_seconds": 1}
EVERYTHING = {**SUITE, "test_long": 1, "test_exhaustive": 9}


@pytest.mark.parametrize(
    ("variable", "arguments", "expected"),
    [
        (None, [], QUICK),
        (SLOW, [], SUITE),
        *((name, [], EVERYTHING) for name in EVERY_CASE),
        (None, ["test_any.py"], SUITE),
        (None, ["test_any.py", "."], QUICK),
        (None, ["-m", "slow"], {"test_of_some_seconds": 1}),
        (None, ["test_any.py::test_long"], {"test_long": 1}),
        (None, ["test_any.py::test_exhaustive"], {"test_exhaustive": 9}),
    ],
)
def test_tests_that_run_depend_on_the_variable_and_on_what_the_arguments_name(
    pytester, monkeypatch, variable, arguments, expected
):
    for name in (SLOW, *EVERY_CASE):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_any=TESTS)

    run = pytester.inline_run("-p", "no:cacheprovider", *arguments)

    passed = Counter(
        call.nodeid.partition("::")[2].partition("[")[0] for call in run.listoutcomes()[0]
    )
    assert passed == expected


@pytest.mark.parametrize(
    ("cases", "one_in", "kept"), [(1, 4, 1), (4, 4, 1), (5, 4, 2), (280, 4, 70)]
)
def test_sample_has_one_case_in_n_rounded_up_whatever_the_order_of_the_cases(cases, one_in, kept):
    names = [f"test[{case}]" for case in range(cases)]

    assert len(sample(names, one_in)) == kept
    assert sample(names, one_in) == sample(names[::-1], one_in) <= set(names)


def test_sample_has_cases_of_both_databases():
    names = [f"test[{case}-{name}]" for case in range(40) for name in ("sqlite", "postgresql")]

    kept = Counter(name.rpartition("-")[2] for name in sample(names, 4))

    assert min(kept.values()) >= 8
