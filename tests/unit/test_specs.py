"""`Spec`, the base class of specs, checks the types of options; specs are stored as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.specs.building import rebuild
from studydb.domain.specs.spec import Spec


@dataclass(frozen=True)
class Sample(Spec):
    """One option of each type that `Spec` checks, and `values`, whose type it does not check."""

    steps: int = 1
    factor: float = 2
    hard: bool = True
    rule: str = "ray"
    seed: int | None = None
    values: Sequence[Any] = ()

    def _check(self) -> None:
        if self.steps > 9:
            raise InvalidSpec("too many steps")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"steps": 1.5}, "Sample.steps is 1.5; it must be an integer."),
        ({"steps": None}, "it must be an integer."),
        ({"steps": True}, "it must be an integer."),
        ({"steps": 2**63}, "it must fit into 64 bits"),
        ({"factor": "2"}, "it must be a number"),
        ({"hard": 1}, "it must be true or false"),
        ({"rule": 3}, "it must be a text"),
        ({"seed": "3"}, "it must be an integer or None"),
    ],
)
def test_option_of_a_wrong_type_is_refused_with_its_name(option, why):
    with pytest.raises(InvalidSpec, match=why):
        Sample(**option)


def test_options_of_right_types_are_checked_by_the_class():
    with pytest.raises(InvalidSpec, match="too many"):
        Sample(steps=10)


def test_whole_floats_and_numpy_numbers_become_numbers_of_builtin_types():
    sample = Sample(steps=3.0, factor=np.float32(0.5), seed=np.int64(4))

    assert [type(option) for option in (sample.steps, sample.factor, sample.seed)] == [
        int, float, int,
    ]  # fmt: skip


def test_spec_round_trips_as_json():
    sample = Sample(steps=3, hard=False, values=[1, "a"])

    assert sample.to_json() == {
        "name": "Sample", "steps": 3, "factor": 2, "hard": False, "rule": "ray", "seed": None,
        "values": [1, "a"],
    }  # fmt: skip
    assert rebuild(sample.to_json(), {"Sample": Sample}, noun="sample") == sample
