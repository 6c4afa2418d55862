"""Requests of people to pin and unpin the checkpoints of a model."""

from typing import TYPE_CHECKING

from harness.model_rows import ModelCheckpoint
from studydb.domain.errors import NotFound, UnknownTrial
from studydb.domain.records import Request

if TYPE_CHECKING:
    from harness.model import Model


def pin(model: "Model", number: int, request: Request) -> int:
    """Pin a trial's newest checkpoint that is not removed; return the checkpoint's step."""
    mine = _checkpoints(model, number)
    if recorded := model._recorded(request.token):
        return int(recorded["data"]["step"])
    kept = [one for one in mine if not one.removed]
    if not kept:
        raise NotFound
    newest = kept[-1]
    if not newest.is_wanted:
        newest.is_wanted, newest.pins = True, newest.pins + 1
    data = {"numbers": [number], "step": newest.step}
    model._record_event("pinned", request.actor, token=request.token, data=data)
    return newest.step


def unpin(model: "Model", number: int, request: Request) -> list[int]:
    """Remove the pins of people from a trial's checkpoints; return these checkpoints' steps."""
    mine = _checkpoints(model, number)
    if recorded := model._recorded(request.token):
        return list(recorded["data"]["steps"])
    wanted = [one for one in mine if one.is_wanted]
    for one in wanted:
        one.is_wanted, one.pins = False, one.pins - 1
    data = {"numbers": [number], "steps": [one.step for one in wanted]}
    model._record_event("unpinned", request.actor, token=request.token, data=data)
    return [one.step for one in wanted]


def _checkpoints(model: "Model", number: int) -> list[ModelCheckpoint]:
    if number >= len(model.trials):
        raise UnknownTrial
    return [one for one in model.checkpoints if one.number == number]
