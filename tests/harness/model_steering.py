"""What people's requests to pause, resume and stop do in the plain-Python study `model.Model`."""

from typing import TYPE_CHECKING

from harness.model_clones import release
from harness.model_rows import ENDED, ModelTrial
from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.states import Reason, State, Status

if TYPE_CHECKING:
    from harness.model import Model


def check_steering(model: "Model", kind: str, numbers: list[int], *, changes: bool) -> None:
    """Raise unless all trials allow the request; `changes`: whether it changes parameters."""
    for number in numbers:
        if number >= len(model.trials):
            raise UnknownTrial
        if model.trials[number].state in ENDED:
            raise NotAllowed
    trials = [model.trials[number] for number in numbers]
    is_late = changes and any(trial.state is State.RUNNING for trial in trials)
    is_invalid = any(trial.invalidated_at is not None for trial in trials)
    if is_late or (is_invalid and kind != "stopped"):
        raise NotAllowed


def steer(model: "Model", trial: ModelTrial, kind: str) -> None:
    """
    Pause, resume or stop a trial; a RUNNING trial only gets the request.

    A trial that a person has paused may wait at a rung. A resumption leaves such a trial PAUSED,
    and only changes its `paused_by` from the person to the scheduler.
    """
    if trial.state is State.RUNNING:
        trial.request = {"paused": Action.PAUSE, "stopped": Action.STOP, "resumed": None}[kind]
    elif kind == "stopped":
        trial.state, trial.reason, trial.ended_at = State.TERMINATED, Reason.CANCELLED, model.now
        trial.ready_at = trial.paused_by = None
        release(trial)
        model.judge.leave_rungs(trial.number)
    elif kind == "paused":
        trial.state, trial.paused_by, trial.ready_at = State.PAUSED, "person", None
    elif trial.paused_by == DecidedBy.PERSON and model.judge.waits(trial.number):
        trial.paused_by = DecidedBy.SCHEDULER
    elif trial.state is State.PAUSED:
        trial.state, trial.paused_by, trial.ready_at = State.PENDING, None, None
        model.judge.leave_rungs(trial.number)


def wake(model: "Model", trial: ModelTrial) -> None:
    """If the study is RUNNING, make a trial PENDING that was paused with its study."""
    if trial.paused_by == "study" and model.status is Status.RUNNING:
        trial.state, trial.paused_by = State.PENDING, None
