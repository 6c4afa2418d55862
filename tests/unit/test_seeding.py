"""
`seed` seeds the generators of Python and numpy; a resumed trial gets another seed.

If numpy is not imported yet, the import of numpy seeds numpy's generator.
"""

import random
import subprocess
import sys

import numpy as np
import pytest

from studydb.child import seeding

BEFORE = {
    "nothing": "",
    "the spec": "import importlib.util; importlib.util.find_spec('numpy.random')",
    "another seed": "seeding.seed(1)",
}
"""
For each case, code that runs before `seeding.seed(5)`.

The code of the case "the spec" finds the module spec of `numpy.random`. It runs again after
`seeding.seed(5)`.
"""


def test_trial_that_goes_on_gets_other_random_numbers_than_its_first_steps():
    drawn = []
    for after_step in (0, 0, 3, 3, 4):
        seeding.seed(5, after_step=after_step)
        drawn.append((random.random(), np.random.random()))  # noqa: NPY002  the global generator

    assert drawn[0] == drawn[1] == (random.Random(5).random(), np.random.RandomState(5).random())
    assert drawn[2] == drawn[3]
    assert len({one for both in drawn for one in both}) == 6


@pytest.mark.parametrize("before", BEFORE)
def test_numpy_that_is_imported_later_has_the_newest_seed(before):
    code = (
        f"from studydb.child import seeding; import sys; {BEFORE[before] or 'pass'}; "
        "seeding.seed(5); "
        + (f"{BEFORE[before]}; " if before == "the spec" else "")
        + "assert 'numpy.random._pickle' not in sys.modules; import numpy; "
        "drawn = numpy.random.random(); numpy.random.seed(5); "
        "print(drawn == numpy.random.random(), any('Seeding' in str(one) for one in sys.meta_path))"
    )

    printed = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert printed == "True False\n"
