"""
Any life of a study, on a database and in a model beside it: both say the same after every step.

`STUDYDB_NIGHTLY=1` makes it long: 25,000 steps on each database.
"""

import functools
import os
from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from life import Life
from likeness import likeness
from picture import picture
from promises import broken_promises, ended_rows

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
STEPS = 50
LIVES = 500 if NIGHTLY else 40

SETTINGS = settings(
    max_examples=LIVES,
    stateful_step_count=STEPS,
    derandomize=not NIGHTLY,  # the suite gives the same answer every time, the night finds more
    deadline=None,
    database=None,
    print_blob=True,
    phases=[phase for phase in Phase if NIGHTLY or phase is not Phase.shrink],  # takes minutes
    suppress_health_check=list(HealthCheck),
)

# Every step draws from a generator of its own: choices are even, and steps can be left out when
# Hypothesis looks for the shortest life that fails.
seeds = st.binary(min_size=8, max_size=8)


class StudyMachine(RuleBasedStateMachine):
    """Lives a life, and compares after every step."""

    steps = 0

    def __init__(self, database):
        super().__init__()
        self.database = database
        self.uses: Counter[bytes] = Counter()
        self.ended, self.params = {}, {}

    @initialize(seed=seeds)
    def begin(self, seed):
        self.life = Life(self.database, Random(seed))

    @rule(seed=seeds)
    def step(self, seed):
        rng = Random(seed + bytes([self.uses[seed]]))  # Hypothesis likes to say things again
        self.uses[seed] += 1
        self.life.step(rng)
        type(self).steps += 1

    @invariant()
    def rows_say_what_the_model_says(self):
        shown = picture(self.database, self.life.study)
        for number, trial in shown["trials"].items():
            params = trial.pop("params")
            assert self.params.setdefault(number, params) == params
        assert shown == likeness(self.life.model)

    @invariant()
    def promises_are_kept(self):
        assert broken_promises(self.database, self.life.study) == {}

    @invariant()
    def ended_trials_stay_as_they_are(self):
        now = ended_rows(self.database, self.life.study)
        assert self.ended.items() <= now.items()
        self.ended = now


@pytest.mark.timeout(7200 if NIGHTLY else 300)
def test_any_life_of_a_study_is_the_models(database):
    StudyMachine.steps = 0

    run_state_machine_as_test(functools.partial(StudyMachine, database), settings=SETTINGS)

    print(f"{StudyMachine.steps} steps")  # noqa: T201  for pytest -rP
    assert StudyMachine.steps >= LIVES * STEPS * 0.9
