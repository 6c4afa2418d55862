"""Clones in `Model`, the checkpoints that are pinned for them, and discards of checkpoints."""

from typing import TYPE_CHECKING

from harness.model_rows import ENDED, ModelCheckpoint, ModelTrial
from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.records import Request

if TYPE_CHECKING:
    from harness.model import Model


def retry(model: "Model", numbers: list[int], request: Request, *, from_scratch: bool) -> list[int]:
    """Clone ended trials, from scratch or from the newest checkpoint of each clone's parent."""
    if recorded := model._recorded(request.token):
        return list(recorded["data"]["clones"])
    numbers = sorted(set(numbers))
    if any(number >= len(model.trials) for number in numbers):
        raise UnknownTrial
    unended = {trial.parent for trial in model.trials if trial.state not in ENDED}
    if any(model.trials[one].state not in ENDED or one in unended for one in numbers):
        raise NotAllowed
    if not from_scratch and model.other_is_closing:
        begin = [newest_of(model, model.trials[number].checkpoint) for number in numbers]
        if any(one in model.foreign for one in begin):
            raise NotAllowed
    clones = [clone(model, model.trials[number], from_scratch=from_scratch) for number in numbers]
    data = {"numbers": numbers, "clones": clones, "from_scratch": from_scratch}
    model._record_event("retried", request.actor, token=request.token, data=data)
    return clones


def clone(model: "Model", parent: ModelTrial, *, from_scratch: bool) -> int:
    """Clone an ended trial; return the number of the clone."""
    found = None if from_scratch else newest_of(model, parent.checkpoint)
    made = ModelTrial(len(model.trials), "clone", model.now, parent=parent.number)
    made.changed, made.bracket, made.asks = parent.changed, parent.bracket, parent.asks
    made.checkpoint = made.source = made.pinned = found
    if found is not None:
        found.pins += 1
        made.checkpoint_step = found.step
    model.judge.unrank(parent.number)
    model.trials.append(made)
    return made.number


def release(trial: ModelTrial) -> None:
    """Unpin the checkpoint that was pinned because a trial begins from it."""
    if trial.pinned is not None:
        trial.pinned.pins -= 1
        trial.pinned = None


def discard(model: "Model", number: int, request: Request) -> list[str]:
    """
    Remove those checkpoints of an ended trial that have no pins.

    Returns:
        The uuids of all removed checkpoints of the trial, except corrupt ones.
    """
    mine = [one for one in model.checkpoints if one.number == number]
    if not model._recorded(request.token):
        if number >= len(model.trials):
            raise UnknownTrial
        trial = model.trials[number]
        if trial.state not in ENDED:
            raise NotAllowed
        for one in mine:
            if not one.pins and not one.removed:
                one.removed, one.data = True, False
        if trial.checkpoint in mine and trial.checkpoint.removed:
            kept = [one for one in mine if not one.removed]
            trial.checkpoint = kept[-1] if kept else None
        data = {"numbers": [number]}
        kind = "checkpoints discarded"
        model._record_event(kind, request.actor, token=request.token, data=data)
    return sorted(one.uuid for one in mine if one.removed and not one.corrupt)


def newest_of(model: "Model", known: ModelCheckpoint | None) -> ModelCheckpoint | None:
    """
    Return `known` if it is kept; if it was removed, return what `before` returns.

    Return None if `known` is None, or if its row was deleted.
    """
    if known is None or known not in [*model.checkpoints, *model.foreign]:
        return None
    return before(model, known) if known.removed else known


def before(model: "Model", known: ModelCheckpoint) -> ModelCheckpoint | None:
    """The trial's newest kept checkpoint before `known`; else the trial's source, if it is kept."""
    is_own = known in model.checkpoints
    rows = model.checkpoints if is_own else model.foreign
    earlier = rows[: rows.index(known)]
    sound = [one for one in earlier if one.number == known.number and not one.removed]
    source = model.trials[known.number].source if is_own else None
    return sound[-1] if sound else None if source is None or source.removed else source
