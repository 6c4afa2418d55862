"""How a model counts attempts whose command has given the trial back."""

import itertools
from collections.abc import Sequence

from harness.model_rows import ModelCheckpoint, ModelTrial
from studydb.domain.failures import Failure
from studydb.domain.life.states import Reason

MOST_FREE, LATER = 9, "TryLater"
KINDS = ("GivenBack", LATER)


def judge_exit(
    trial: ModelTrial,
    checkpoints: Sequence[ModelCheckpoint],
    outcome: Reason,
    failure: Failure | None,
) -> tuple[Reason, float]:
    """Return how the trial's last attempt counts, and the seconds until the next attempt."""
    if outcome is not Reason.PREEMPTED or failure is None or failure.type not in KINDS:
        return outcome, 0.0
    saved = [one.attempt for one in checkpoints if one.number == trial.number]
    before = [one for one in trial.attempts[:-1] if one.no > max(saved, default=0)]
    exits = itertools.takewhile(lambda one: one.error_type in KINDS, reversed(before))
    in_a_row = 1 + sum(1 for _ in exits)
    if in_a_row > MOST_FREE:
        return Reason.LOST, 0.0
    return outcome, 2.0 ** (in_a_row - 1) if failure.type == LATER else 0.0
