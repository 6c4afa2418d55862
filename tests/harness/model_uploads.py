"""Uploads in a model: rows that name checkpoints whose bytes may exist without a checkpoint's row."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from harness.model_rows import ModelUpload

if TYPE_CHECKING:
    from harness.model import Model


def begin_upload(model: "Model", token: str, *, uuid: str) -> None:
    """Record an upload, unless it is recorded."""
    attempt, trial = model._of(token)
    if trial.held is attempt and any(one.uuid == uuid for one in model.uploads):
        return
    model._fence(token)
    model.uploads.append(ModelUpload(uuid, trial.number, attempt.no))


def save_upload(model: "Model", token: str, *, uuid: str, step: int) -> list[str]:
    """Record the checkpoint of an upload, whose row ends with it."""
    is_new = all(one.uuid != uuid for one in model.checkpoints)
    older = model.save(token, uuid=uuid, step=step)
    if is_new:
        model.checkpoints[-1].data = False
        model.checkpoints[-1].url = f"file:///store/{uuid}"
        model.uploads = [one for one in model.uploads if one.uuid != uuid]
    return older


def collect_in_turns(model: "Model") -> Generator[None, None, list[tuple[str, bool]]]:
    """Find the uploads of ended attempts, then delete them one by one; tell which were stored."""
    found = [one for one in model.uploads if _has_ended(model, one)]
    stored = {one.uuid for one in model.checkpoints}
    answer = sorted((one.uuid, one.uuid in stored) for one in found)
    for one in found:
        yield
        model.uploads = [each for each in model.uploads if each is not one]
    return answer


def _has_ended(model: "Model", upload: ModelUpload) -> bool:
    """Whether the attempt of an upload has ended, by a clock that may have been turned back."""
    ended_at = model.trials[upload.number].attempts[upload.attempt - 1].ended_at
    return ended_at is not None and ended_at <= model.now


def collect(model: "Model") -> list[tuple[str, bool]]:
    """Collect while nothing else runs."""
    turns = collect_in_turns(model)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: list[tuple[str, bool]] = end.value
            return found
