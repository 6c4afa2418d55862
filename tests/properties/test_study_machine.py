"""
Random walks on a study: after every few steps, its rows in a database equal those of its model.

`STUDYDB_NIGHTLY=1` makes the test long: at least 250 walks of up to 50 steps on each database for
each kind of study. With this variable or `STUDYDB_EVERY_CASE=1`, the rows are compared after every
step.
"""

import functools
import os
from collections import Counter
from random import Random

import hypothesis
import pytest
from harness.checkpoint_steps import KEEPS
from harness.expected_rows import expected_rows
from harness.nightly import every_case_runs
from harness.random_walk import (
    ASHAS,
    CUSTOM,
    CUSTOM_PROMOTIONS,
    END_GAME,
    GROWING,
    HYPERBANDS,
    LIMITS,
    MEDIANS,
    ONE_EPOCH,
    PROMOTIONS,
    SYNE_TUNE,
    RandomWalk,
)
from harness.row_invariants import broken_promises, ended_rows
from harness.snapshot import take_snapshot
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from studydb.domain.resources import read_resources
from studydb.schedulers import FIFO

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
STEPS = 50
"""The steps of a walk; Hypothesis counts `begin` as one of them."""
STEPS_PER_CHECK = 1 if every_case_runs() else 3
"""
A check takes twice as long as a step. Most wrong rows stay wrong, so a later check finds them. A
wrong row that the next two steps overwrite is found only if every case runs.
"""
WALKS = 250 if NIGHTLY else 8
"""The walks of a round. Up to `ROUNDS` rounds run, until all that must happen has happened."""
ROUNDS = 4 if NIGHTLY else 12

SETTINGS = settings(
    max_examples=WALKS,
    stateful_step_count=STEPS,
    derandomize=False,  # even if CI is set, so that the nightly run makes new walks
    deadline=None,
    database=None,
    print_blob=True,
    # Shrinking a walk that fails takes minutes, so only the nightly run does it.
    phases=[phase for phase in Phase if NIGHTLY or phase is not Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

# Hypothesis draws a seed for each step, and Random makes the step's choices from the seed, so that
# Hypothesis does not bias the choices. No seed depends on earlier steps, so Hypothesis can shorten
# a failing walk by removing steps.
seeds = st.binary(min_size=8, max_size=8)


MUST_HAPPEN = {
    "ask: something",
    "claim: something",
    "claim: nothing",
    "enqueue: something",
    "report: something",
    "report: LeaseLost",
    "save: something",
    "save: LeaseLost",
    "begin_upload: nothing",
    "begin_upload: LeaseLost",
    "save_upload: something",
    "collect: something",
    "renew: something",
    "finish: TERMINATED",
    "finish: LeaseLost",
    "give_back_in_a_row",
    "recover: something",
    "paused: nothing",
    "resumed: nothing",
    "changed: nothing",
    "invalidate: nothing",
    "stopped: nothing",
    "extend: something",
    "study: nothing",
    "crash",
    "turn_clock_back",
    "send_again",
}
"""
Steps and answers that must occur; otherwise the walks have tested too little. `ROOM`
replaces this set for studies with a quota, and `SIZED` for studies whose trials ask for resources.
"""


STARTS = {
    *("enqueue_from_a_trial: something", "enqueue_from_a_trial: NotFound"),
    "enqueue_from_another_study: something",
    *("enqueue_a_dict: something", "enqueue_an_upload: something", "discard_other: nothing"),
    *("close_other: nothing", "reopen_other: nothing", "remove_unkept: nothing"),
}
"""
What must occur with FIFO, besides MUST_HAPPEN and ENDS: trials begin from checkpoints, checkpoints
are removed, and the deletion of another study begins and is undone.
"""

ROOM = {
    *("save: something", "save: CheckpointError", "save: LeaseLost", "quota reached"),
    *("save_upload: something", "set_keep: nothing", "remove_unkept: nothing", "retry: something"),
    *("pin: something", "discard: something", "recover: something"),
    *("enqueue_from_a_trial: something", "enqueue_from_another_study: something", "send_again"),
}
"""What must occur in studies with a quota."""

ENDS = {
    *("retry: something", "give_back: PENDING", "report: STOP by trial", "reinstate: nothing"),
}
"""What must occur with FIFO and with ASHA by stopping, besides MUST_HAPPEN."""


SIZED = {
    *("set_resources: nothing", "set_resources_of_study: nothing", "set_resources: NotAllowed"),
    *("resources set by scheduler", "reserved", "a trial that fits passes another"),
}
"""What must occur besides promotions, if trials ask for resources."""


class StudyMachine(RuleBasedStateMachine):
    """Takes a random walk; after every few steps, compares rows with the model."""

    def __init__(self, database, spec, happened):
        super().__init__()
        self.database, self.spec, self.happened = database, spec, happened
        self.n_steps = 0
        self.uses: Counter[bytes] = Counter()
        self.ended, self.params = {}, {}

    @initialize(seed=seeds)
    def begin(self, seed):
        self.walk = RandomWalk(self.database, Random(seed), **self.spec(seed))

    @rule(seed=seeds)
    def step(self, seed):
        rng = Random(seed + bytes([self.uses[seed]]))  # Hypothesis often repeats a seed
        self.uses[seed] += 1
        self.walk.step(rng)
        self.n_steps += 1

    @invariant()
    def rows_are_right(self):
        """Compare the rows with the model; check the promises and the rows of ended trials."""
        if self.n_steps % STEPS_PER_CHECK and self.n_steps != STEPS - 1:
            return
        shown = take_snapshot(self.database, self.walk.study)
        for number, trial in shown["trials"].items():
            params = trial.pop("params")
            assert self.params.setdefault(number, params) == params
        assert shown == expected_rows(self.walk.model)
        assert broken_promises(self.database, self.walk.study) == {}
        now = ended_rows(self.database, self.walk.study)
        assert self.ended.items() <= now.items()
        self.ended = now

    def teardown(self):
        self.happened["step"] += self.n_steps
        self.happened.update(self.walk.happened)
        events = self.walk.model.events
        self.happened.update(event["kind"] for event in events)
        self.happened.update(f"{event['kind']} by {event['actor']}" for event in events)
        self.happened.update(self.walk.model.resources.happened)


def fifo(_):
    return {"scheduler": FIFO()}


def any_asha(seed):
    return {"scheduler": ASHAS[seed[0] % len(ASHAS)]}


def any_promotion(seed):
    return {"scheduler": PROMOTIONS[seed[0] % len(PROMOTIONS)]}


def any_custom(seed):
    schedulers = [*CUSTOM, *CUSTOM_PROMOTIONS]
    return {"scheduler": schedulers[seed[0] % len(schedulers)]}


def any_means(seed):
    # MEDIANS[-1] is listed twice, because no other of these schedulers pauses trials.
    schedulers = [*MEDIANS, MEDIANS[-1], SYNE_TUNE]
    return {"scheduler": schedulers[seed[0] % len(schedulers)]}


def any_choice_at_the_end(seed):
    """
    Studies whose scheduler chooses which trials go on.

    It chooses when `num_trials` is reached or half of `max_steps` is spent.
    """
    limits = {"max_steps": 40, "num_trials": None} if seed[1] % 2 else {"num_trials": 6}
    return {"scheduler": (END_GAME, ONE_EPOCH)[seed[0] % 2], "rules": (), **limits}


def any_hyperband(seed):
    budgets = ({"num_trials": 8}, {"num_trials": 3}, {"num_trials": None})
    return {"scheduler": HYPERBANDS[seed[0] % 2], "rules": (), **budgets[seed[1] % 3]}


def any_limits(seed):
    scheduler = (FIFO(), ASHAS[0])[seed[1] % 2]
    return {"scheduler": scheduler, "rules": (), **LIMITS[seed[0] % len(LIMITS)]}


def any_resources(seed):
    """Studies whose trials may ask for resources, with two workers that offer unequal amounts."""
    scheduler = (FIFO(), ASHAS[0], PROMOTIONS[0], PROMOTIONS[1], *GROWING)[seed[0] % 6]
    asked = (None, "nothing", "cpus=1", "gpus=1")[seed[1] % 4]
    resources = None if asked is None else read_resources("resources", asked)
    budgets = {"num_trials": (60, 30)[seed[3] % 2], "max_concurrent": (None, 4)[seed[2] % 2]}
    return {"scheduler": scheduler, "resources": resources, "is_sized": True, **budgets}


def any_quota(seed):
    """Studies that have a quota, or that keep more checkpoints than the newest two."""
    scheduler = (FIFO(), ASHAS[0], PROMOTIONS[0])[seed[1] % 3]
    return {"scheduler": scheduler, "rules": (), "keep": KEEPS[seed[0] % len(KEEPS)]}


KINDS = {
    "FIFO": (fifo, MUST_HAPPEN | {"report: STOP by person", "finish: PENDING", *ENDS, *STARTS}),
    "ASHA by promotion": (
        any_promotion,
        MUST_HAPPEN | {"report: PAUSE by scheduler", "promote: something"},
    ),
    "ASHA": (any_asha, MUST_HAPPEN | {"report: STOP by scheduler", *ENDS}),
    "means and ranks": (
        any_means,
        MUST_HAPPEN | {"report: STOP by scheduler", "report: PAUSE by scheduler"},
    ),
    "custom": (
        any_custom,
        MUST_HAPPEN | {"report: STOP by scheduler", "report: PAUSE by scheduler", "meanwhile"},
    ),
    "HyperBand": (any_hyperband, MUST_HAPPEN | {"promote: something", "rung closed"}),
    "end game": (any_choice_at_the_end, MUST_HAPPEN | {"promote: something", "rung closed"}),
    "limits": (
        any_limits,
        MUST_HAPPEN | {"report: STOP by limit", "study: NotAllowed", "set_limits: nothing"},
    ),
    "quota": (any_quota, ROOM),
    "resources": (any_resources, {"promote: something", *SIZED}),
}
"""The kinds of studies, and what must happen in the walks of a kind."""

QUICK = ("FIFO", "ASHA by promotion")
"""The kinds whose walks are not slow tests, one on each database."""


@pytest.mark.row("A3", "E1", "E2")
@pytest.mark.timeout(7200 if NIGHTLY else 900)
@pytest.mark.parametrize(
    ("spec", "must"),
    [
        pytest.param(*kind, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, kind in KINDS.items()
    ],
)
def test_study_equals_its_model_after_any_random_walk(database, spec, must):
    happened = Counter()
    for number in range(1, ROUNDS + 1):
        machine = functools.partial(StudyMachine, database, spec, happened)
        run_state_machine_as_test(
            # With a seed, the suite repeats the same walks.
            machine if NIGHTLY else hypothesis.seed(number)(machine),
            settings=SETTINGS,
        )
        assert happened["step"] >= number * WALKS * STEPS * 0.9
        if must <= happened.keys():
            break
    print(f"{happened['step']} steps, {dict(happened.most_common())}")  # noqa: T201  for pytest -rP
    assert must <= happened.keys()
