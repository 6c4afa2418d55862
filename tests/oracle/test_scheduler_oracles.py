"""
Schedulers decide as those of Ray Tune and Syne Tune do, on random reports with ties, NaN and Inf.

In some points studydb differs on purpose. The cases avoid these points, which
`harness.oracle_cases` lists.

The default suite omits this file; tests/README.md says how to run it in an environment with the
extra `[oracle]`. `tests/unit/test_recorded_decisions.py` compares studydb's decisions with recorded
decisions of Ray Tune and Syne Tune, and needs neither of these systems.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", ["ray_asha", "ray_hyperband", "ray_median", "syne_tune_asha"])
@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_decisions_equal_those_of_the_other_system(name, seed):
    from harness import oracle_cases, oracle_replay  # noqa: PLC0415  imports ray and syne-tune

    case = oracle_cases.CASES[name](Random(seed))

    assert oracle_replay.differences(name, case) == []
