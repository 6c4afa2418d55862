"""The Python examples of docs/classes.md and docs/trainables.md run as they are written."""

import pytest
from harness.documented_code import names_defined_in


@pytest.mark.nightly
@pytest.mark.parametrize(("page", "name"), [("classes.md", "Net"), ("trainables.md", "trainable")])
def test_example_of_the_documentation_learns(sqlite_stage, page, name):
    stage, space = sqlite_stage, {"alpha": 0.01}
    stop = ["training_iteration>=5"]

    stage.create(names_defined_in(page)[name], metric="error", space=space, stop=stop, num_trials=2)

    assert stage.run() == 0
    assert stage.steps(0) == stage.steps(1) == [1, 2, 3, 4, 5]
    assert stage.trial(0).last_value == stage.trial(1).last_value < 0.2
    reused = "reused" if page == "classes.md" else "warm"
    assert [stage.attempts(number)[0].start for number in range(2)] == ["warm", reused]
