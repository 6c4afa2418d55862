"""If a process sets a seed before it imports numpy, the import seeds numpy's generator."""

import subprocess
import sys

import pytest

BEFORE = {
    "nothing": "",
    "the spec": "import importlib.util; importlib.util.find_spec('numpy.random')",
    "another seed": "seeding.seed(1)",
}
"""Code that runs before the seed is set; the code of "the spec" also runs after the seed is set."""


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
