"""Clones in a model: what they begin from, and the checkpoints that are pinned for them."""

from typing import TYPE_CHECKING

from harness.model_rows import ModelCheckpoint, ModelTrial

if TYPE_CHECKING:
    from harness.model import Model


def clone(model: "Model", parent: ModelTrial, *, from_scratch: bool) -> int:
    """Clone an ended trial; return the number of the clone."""
    made = ModelTrial(len(model.trials), "clone", model.now, parent=parent.number)
    made.changed = parent.changed
    found = None if from_scratch else parent.checkpoint
    if found is not None and found.removed:  # another clone has found it corrupt
        found = _before(model, found)
    made.checkpoint = made.source = made.pinned = found
    if found is not None:
        found.pins += 1
        made.checkpoint_step = found.step
    model.judge.unrank(parent.number)
    model.trials.append(made)
    return made.number


def fall_back(model: "Model", trial: ModelTrial, bad: ModelCheckpoint) -> ModelCheckpoint | None:
    """The checkpoint to restore instead of a corrupt one; a clone's pin moves with its source."""
    before = _before(model, bad)
    if trial.checkpoint is bad and bad.number != trial.number:
        release(trial)
        trial.source = trial.pinned = before
        if before is not None:
            before.pins += 1
    return before


def release(trial: ModelTrial) -> None:
    """Unpin the checkpoint from which a clone began."""
    if trial.pinned is not None:
        trial.pinned.pins -= 1
        trial.pinned = None


def _before(model: "Model", known: ModelCheckpoint) -> ModelCheckpoint | None:
    """The newest earlier checkpoint of the trial, or that from which the trial began, if sound."""
    earlier = model.checkpoints[: model.checkpoints.index(known)]
    sound = [one for one in earlier if one.number == known.number and not one.removed]
    source = model.trials[known.number].source
    return sound[-1] if sound else None if source is None or source.removed else source
