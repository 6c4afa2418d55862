"""An error in a typed `constant(…)` names the path of its parameter."""

import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.space.parameters import parse_parameter


def test_error_of_constant_names_the_path_of_the_parameter():
    with pytest.raises(InvalidSpec, match=r"Parameter 'model/width': .*constant"):
        parse_parameter("model/width=constant(1, 2, 3)")
