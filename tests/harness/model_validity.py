"""How a model's trials are invalidated and reinstated at a person's request."""

from typing import TYPE_CHECKING

from harness.model_clones import release
from harness.model_rows import ModelTrial
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import Reason, State

if TYPE_CHECKING:
    from harness.model import Model


def invalidate(model: "Model", trial: ModelTrial) -> None:
    """Invalidate a trial: a RUNNING trial is asked to stop, a PENDING or PAUSED trial ends."""
    if trial.invalidated_at is None:
        trial.invalidated_at = model.now
    model.judge.unrank(trial.number)
    if trial.state is State.RUNNING:
        trial.request = Action.STOP
    elif trial.ended_at is None:
        trial.state, trial.reason, trial.ended_at = State.TERMINATED, Reason.INVALIDATED, model.now
        trial.ready_at = trial.paused_by = None
        release(trial)
        model.judge.leave_rungs(trial.number)


def reinstate(model: "Model", trial: ModelTrial) -> None:
    """Undo the invalidation of a trial; its entries rank again, unless it has a clone."""
    trial.invalidated_at = trial.request = None
    if all(one.parent != trial.number for one in model.trials):
        model.judge.rerank(trial.number)
