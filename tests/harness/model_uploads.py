"""The uploads of a model: checkpoints whose bytes may exist although they have no row yet."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from harness.model_checkpoints import save
from harness.model_rows import ModelCheckpoint, ModelUpload
from studydb.domain.life.retention import Keep

if TYPE_CHECKING:
    from harness.model import Model

ABANDONED_S = 90_000.0
"""The age at which an upload of a person is abandoned; `enqueue` refuses it an hour earlier."""


def begin_upload(model: "Model", token: str, *, uuid: str) -> None:
    """Record an upload, unless it is already recorded."""
    attempt, trial = model._of(token)
    if trial.held is attempt and any(one.uuid == uuid for one in model.uploads):
        return
    model._fence(token)
    model.uploads.append(ModelUpload(uuid, trial.number, attempt.no, model.now))


def save_upload(model: "Model", token: str, *, new: ModelCheckpoint, keep: Keep) -> list[str]:
    """Record the checkpoint of an upload; if the checkpoint is new, delete the upload."""
    is_new = all(one.uuid != new.uuid for one in model.checkpoints)
    older = save(model, token, new=new, keep=keep)
    if is_new:
        model.uploads = [one for one in model.uploads if one.uuid != new.uuid]
    return older


def collect_in_turns(model: "Model") -> Generator[None, None, list[tuple[str, bool]]]:
    """Delete the rows of abandoned uploads; tell for each whether its checkpoint is stored."""
    stored = {one.uuid for one in model.checkpoints}
    found = [one for one in model.uploads if _is_abandoned(model, one, stored)]
    answer = sorted((one.uuid, one.uuid in stored) for one in found)
    for one in found:
        yield
        model.uploads = [each for each in model.uploads if each is not one]
    return answer


def _is_abandoned(model: "Model", one: ModelUpload, stored: set[str]) -> bool:
    """
    Whether no process will finish an upload.

    If the clock was turned back to before the end of the upload's attempt, the answer is False.
    """
    if one.number is None:
        return model.now - one.started_at >= ABANDONED_S and one.uuid not in stored
    ended_at = model.trials[one.number].attempts[one.attempt - 1].ended_at
    return ended_at is not None and ended_at <= model.now
