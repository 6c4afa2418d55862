"""Which tests the default suite leaves out because of the markers `nightly` and `sampled`."""

from collections import Counter

import pytest
from harness.nightly import EVERY_CASE, sample

pytest_plugins = ["pytester"]

CONFTEST = """
from harness import nightly

def pytest_configure(config):
    config.addinivalue_line("markers", "nightly")
    config.addinivalue_line("markers", "sampled(n)")

def pytest_collection_modifyitems(items):
    left_out = nightly.left_out(items)
    items[:] = [item for item in items if item not in left_out]
"""

TESTS = """
import pytest

def test_short(): ...

@pytest.mark.nightly
def test_long(): ...

@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", range(9))
def test_exhaustive(case): ...
"""


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, {"test_short": 1, "test_exhaustive": 3}),
        *((name, {"test_short": 1, "test_long": 1, "test_exhaustive": 9}) for name in EVERY_CASE),
    ],
)
def test_default_suite_leaves_out_long_tests_and_most_cases_of_exhaustive_ones(
    pytester, monkeypatch, variable, expected
):
    for name in EVERY_CASE:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)

    run = pytester.inline_run("-p", "no:cacheprovider")

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
