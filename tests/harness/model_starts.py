"""Enqueued trials in a model, and the checkpoints from which they begin."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.model_clones import newest_of
from harness.model_rows import ModelCheckpoint, ModelTrial, ModelUpload
from studydb.domain.errors import BudgetSpent, NotAllowed, NotFound, UnknownTrial
from studydb.domain.life.states import State
from studydb.domain.records import Request

if TYPE_CHECKING:
    from harness.model import Model

OTHER = -1
"""The number of the only trial of a second study, which a model may hold (see `add_other`)."""

DAY_S = 86_400.0
"""The age from which `enqueue` refuses the upload of a person."""


@dataclass(frozen=True)
class StartOf:
    """A trial's checkpoint at `step`; the newest one if `step` is None."""

    number: int
    step: int | None = None


def enqueue(
    model: "Model",
    request: Request,
    *,
    priority: int = 0,
    asks: str | None = None,
    start: StartOf | ModelCheckpoint | None = None,
) -> int:
    """Add an enqueued trial; it may begin from a trial's checkpoint, or from a person's."""
    if recorded := model._recorded(request.token):
        return int(recorded["data"]["number"])
    source = _source(model, start) if isinstance(start, StartOf) else None
    if not model.is_open:
        raise BudgetSpent
    number, asked = len(model.trials), model.resources.add(asks)
    trial = ModelTrial(number, "enqueued", model.now, priority=priority, asks=asked)
    trial.bracket = model.judge.bracket_of(number)
    if isinstance(start, ModelCheckpoint):
        _end_upload(model, start)
        trial.checkpoint = start
        model.checkpoints.append(start)
    if source is not None:
        trial.checkpoint = trial.source = trial.pinned = source
        source.pins += 1
    trial.checkpoint_step = trial.checkpoint.step if trial.checkpoint else 0
    model.trials.append(trial)
    data = {"number": number}
    model._record_event("enqueued", request.actor, token=request.token, data=data)
    return number


def begin_upload_of_person(model: "Model", *, uuid: str) -> None:
    """Record that a person's checkpoint will be written, unless that is already recorded."""
    if all(one.uuid != uuid for one in model.uploads):
        model.uploads.append(ModelUpload(uuid, None, 0, started_at=model.now))


def add_other(model: "Model", *, checkpoints: list[ModelCheckpoint]) -> None:
    """Add another study, with one ended trial and its checkpoints."""
    model.foreign = checkpoints
    model.other = ModelTrial(OTHER, "searcher", model.now, state=State.TERMINATED)
    model.other.checkpoint = checkpoints[-1]


def discard_other(model: "Model", token: str) -> None:
    """Remove the checkpoints of the other study that have no pins."""
    assert model.other is not None
    if token in model.sent_to_other:
        return
    model.sent_to_other.add(token)
    for one in model.foreign:
        if not one.pins and not one.removed:
            one.removed, one.data = True, False
    newest = model.other.checkpoint
    if newest is not None and newest.removed and not newest.corrupt:
        kept = [one for one in model.foreign if not one.removed]
        model.other.checkpoint = kept[-1] if kept else None


def close_other(model: "Model") -> None:
    """Begin to delete the other study, unless one of its kept checkpoints is pinned."""
    if any(one.pins for one in model.foreign if not one.removed):
        raise NotAllowed
    model.other_is_closing = True


def reopen_other(model: "Model", token: str) -> None:
    """Resume the other study, whose deletion has failed."""
    if token not in model.sent_to_other:
        model.other_is_closing = False
    model.sent_to_other.add(token)


def _source(model: "Model", start: StartOf) -> ModelCheckpoint:
    if start.number >= len(model.trials):
        raise UnknownTrial
    trial = model.other if start.number == OTHER else model.trials[start.number]
    assert trial is not None
    if start.step is None:
        found = newest_of(model, trial.checkpoint)
    else:
        rows = model.foreign if start.number == OTHER else model.checkpoints
        mine = (one for one in reversed(rows) if one.number == start.number)
        found = next((one for one in mine if not one.removed and one.step == start.step), None)
    if found is None:
        raise NotFound
    if model.other_is_closing and (start.number == OTHER or found in model.foreign):
        raise NotAllowed
    return found


def _end_upload(model: "Model", start: ModelCheckpoint) -> None:
    if start.data:  # an inline checkpoint has no row of an upload
        return
    begun = [one for one in model.uploads if one.uuid == start.uuid]
    if not begun or model.now - begun[0].started_at >= DAY_S:
        raise NotFound
    model.uploads = [one for one in model.uploads if one.uuid != start.uuid]
