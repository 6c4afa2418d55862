"""Checkpoints in a model: saves, removals by `keep` and by the quota, and corrupt checkpoints."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.model_clones import before, release
from harness.model_rows import ENDED, ModelCheckpoint, ModelTrial
from studydb.domain.errors import CheckpointError, LeaseLost, UnknownTrial
from studydb.domain.life.retention import Keep
from studydb.domain.records import Request

if TYPE_CHECKING:
    from harness.model import Model


def save(model: "Model", token: str, *, new: ModelCheckpoint, keep: Keep) -> list[str]:
    """
    Store a checkpoint; return the uuids of the checkpoints that `keep` or the quota removes.

    A duplicate request gets the answer of `_removed_by`.
    """
    attempt, trial = model._of(token)
    if any(one.uuid == new.uuid for one in model.checkpoints):
        return _removed_by(model, trial, new.uuid)
    model._fence(token)
    expired = _unkept(model, trial, [*_kept_of(model, trial), new], keep)
    chosen = _make_room(model, trial, new, expired)
    # If an earlier send recorded "quota reached", it also stored the checkpoint; the checkpoint's
    # row was deleted later.
    if chosen and model._recorded(new.uuid):
        raise LeaseLost(number=trial.number, attempt=attempt.no)
    _remove(model, [*expired, *chosen])
    if chosen:
        data = {
            "quota": model.keep.quota_bytes,
            "removed": [[one.number, one.step] for one in chosen],
            "size_bytes": sum(one.size_bytes for one in chosen),
        }
        kind = "quota reached"
        model._record_event(kind, "worker", attempt=attempt, token=new.uuid, data=data)
    trial.checkpoint = new
    model.checkpoints.append(new)
    if new.step > trial.checkpoint_step:
        trial.checkpoint_step, trial.losses = new.step, 0
    trial.suspect_at = None
    return [one.uuid for one in [*expired, *chosen]]


def delete_removed(model: "Model") -> None:
    """Delete the rows of removed checkpoints, except corrupt ones."""
    model.checkpoints = [one for one in model.checkpoints if one.corrupt or not one.removed]


def remove_unkept(model: "Model", number: int) -> None:
    """Remove those of a trial's checkpoints that `keep` does not keep, as the command `gc` does."""
    if number >= len(model.trials):
        raise UnknownTrial
    trial = model.trials[number]
    _remove(model, _unkept(model, trial, _kept_of(model, trial), model.keep))


def set_keep(model: "Model", keep: Keep, request: Request) -> None:
    """Change what is kept; nothing is removed before the next save or `gc`."""
    if not model._recorded(request.token):
        model.keep = keep
        data = {"keep": str(keep)}
        model._record_event("retention set", request.actor, token=request.token, data=data)


def mark_corrupt(model: "Model", token: str, *, uuid: str, is_verified: bool) -> str | None:
    """
    Mark a checkpoint corrupt, unless it is another trial's and its signature was not verified.

    Returns:
        The uuid of the checkpoint to restore instead; None if the attempt starts from scratch.
    """
    attempt, trial = model._fence(token)
    bad = next(one for one in [*model.checkpoints, *model.foreign] if one.uuid == uuid)
    is_next, is_own = trial.checkpoint is bad, bad.number == trial.number
    older = before(model, bad)
    is_new = (is_verified or is_own) and not bad.corrupt
    if is_next and not is_own:
        release(trial)
        trial.source = trial.pinned = older
        if older is not None:
            older.pins += 1
    if is_new:
        bad.corrupt = bad.removed = True
    if is_new or is_next:
        trial.checkpoint, trial.suspect_at = older, None
        if trial.flush_no == 0:
            attempt.start_step = older.step + 1 if older else 1
        data = {"url": bad.url, "step": bad.step}
        model._record_event("checkpoint corrupt", "worker", attempt=attempt, data=data)
    return older.uuid if older else None


def kept_bytes(model: "Model") -> int | None:
    """The bytes of all kept checkpoints, as a study's row has them; None without a quota."""
    if model.keep.quota_bytes is None:
        return None
    return sum(one.size_bytes for one in model.checkpoints if not one.removed)


def _kept_of(model: "Model", trial: ModelTrial) -> list[ModelCheckpoint]:
    return [one for one in model.checkpoints if one.number == trial.number and not one.removed]


def _unkept(
    model: "Model", trial: ModelTrial, saved: Sequence[ModelCheckpoint], keep: Keep
) -> list[ModelCheckpoint]:
    """Checkpoints that `keep` does not keep, oldest first; never pinned ones or the newest two."""
    values = [(_value(trial, one), place) for place, one in enumerate(saved)]
    ranked = sorted(
        (model.judge.score(value), place)
        for value, place in values
        if value is not None and not math.isnan(value)
    )
    best = {place for _, place in ranked[: keep.best]}
    return [
        one
        for place, one in enumerate(saved[: -max(keep.last, 2)])
        if place not in best and (keep.every is None or one.step % keep.every) and not one.pins
    ]


def _value(trial: ModelTrial, saved: ModelCheckpoint) -> float | None:
    """The newest value at a checkpoint's step, from the saving attempt or an earlier attempt."""
    for attempt in reversed(trial.attempts[: saved.attempt]):
        if saved.step in attempt.stored:
            return attempt.stored[saved.step]
    return None


def _make_room(
    model: "Model", trial: ModelTrial, new: ModelCheckpoint, expired: Sequence[ModelCheckpoint]
) -> list[ModelCheckpoint]:
    """
    Choose the oldest checkpoints that may be removed, so that a new one fits into the quota.

    Raises:
        CheckpointError: The new checkpoint would not fit even if all removable ones were removed.
    """
    quota = model.keep.quota_bytes
    if quota is None:
        return []
    kept = [one for one in model.checkpoints if not one.removed and one not in expired]
    needed = sum(one.size_bytes for one in [*kept, new]) - quota
    chosen = []
    for one in kept:
        owner = model.trials[one.number]
        is_free = owner is trial or owner.state in ENDED or owner.checkpoint is not one
        if needed > 0 and is_free and not one.pins:
            chosen.append(one)
            needed -= one.size_bytes
    if needed > 0:
        raise CheckpointError
    return chosen


def _remove(model: "Model", removed: Sequence[ModelCheckpoint]) -> None:
    for one in removed:
        one.removed, one.data = True, False
    for one in removed:
        owner = model.trials[one.number]
        if owner.state in ENDED and owner.checkpoint is one:
            kept = _kept_of(model, owner)
            owner.checkpoint = kept[-1] if kept else None


def _removed_by(model: "Model", trial: ModelTrial, uuid: str) -> list[str]:
    """
    What a duplicate request of a save returns; checkpoints whose rows are deleted are left out.

    The answer names all removed checkpoints of the trial, and those of other trials that the first
    send has removed, but no corrupt ones.
    """
    event = model._recorded(uuid)
    named = event["data"]["removed"] if event else []
    return [
        one.uuid
        for one in model.checkpoints
        if one.removed
        and not one.corrupt
        and (one.number == trial.number or [one.number, one.step] in named)
    ]
