"""
Any life of a study, on a database and in a model beside it: both say the same after every step.

`STUDYDB_NIGHTLY=1` makes it long: 25,000 steps on each database, half of them with ASHA.
"""

import functools
import os
from collections import Counter
from random import Random

import pytest
from harness.expected_rows import likeness
from harness.random_walk import ASHAS, Life
from harness.row_invariants import broken_promises, ended_rows
from harness.snapshot import picture
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from studydb.schedulers import FIFO

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
STEPS = 50
LIVES = 250 if NIGHTLY else 20

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


HAPPENS = {
    "ask: something",
    "claim: something",
    "claim: nothing",
    "enqueue: something",
    "report: something",
    "report: LeaseLost",
    "save: something",
    "save: LeaseLost",
    "renew: something",
    "finish: TERMINATED",
    "finish: LeaseLost",
    "recover: something",
    "paused: nothing",
    "resumed: nothing",
    "stopped: nothing",
    "extend: something",
    "study: nothing",
    "crash",
    "turn_back",
    "send_again",
}
"""What lives must hold, or nothing was put to the test: what was called, and its answer."""


class StudyMachine(RuleBasedStateMachine):
    """Lives a life, and compares after every step."""

    def __init__(self, database, scheduler, happened):
        super().__init__()
        self.database, self.scheduler, self.happened = database, scheduler, happened
        self.uses: Counter[bytes] = Counter()
        self.ended, self.params = {}, {}

    @initialize(seed=seeds)
    def begin(self, seed):
        self.life = Life(self.database, Random(seed), scheduler=self.scheduler(seed))

    @rule(seed=seeds)
    def step(self, seed):
        rng = Random(seed + bytes([self.uses[seed]]))  # Hypothesis likes to say things again
        self.uses[seed] += 1
        self.life.step(rng)
        self.happened["step"] += 1

    def teardown(self):
        self.happened.update(self.life.happened)

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


def any_asha(seed):
    return ASHAS[seed[0] % len(ASHAS)]


@pytest.mark.timeout(7200 if NIGHTLY else 300)
@pytest.mark.parametrize(
    ("scheduler", "also"),
    [
        (lambda _: FIFO(), {"report: STOP by person", "finish: PENDING"}),
        (any_asha, {"report: STOP by scheduler"}),
    ],
    ids=["FIFO", "ASHA"],
)
def test_any_life_of_a_study_is_the_models(database, scheduler, also):
    happened = Counter()

    machine = functools.partial(StudyMachine, database, scheduler, happened)
    run_state_machine_as_test(machine, settings=SETTINGS)

    print(f"{happened['step']} steps, {dict(happened.most_common())}")  # noqa: T201  for pytest -rP
    assert happened["step"] >= LIVES * STEPS * 0.9
    assert HAPPENS | also <= happened.keys()
