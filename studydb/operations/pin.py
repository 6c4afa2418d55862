"""Pin a checkpoint of a trial, so that it is kept until a person removes the pin (`unpin`)."""

import shlex

from studydb.db import Database, Txn
from studydb.domain.errors import NotFound
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study
from studydb.operations.reads import existing_trial
from studydb.store import checkpoint_listing, events, pins


def pin(
    database: Database, study: Study, number: int, request: Request, *, step: int | None = None
) -> int:
    """
    Pin a kept checkpoint of a trial. If people have pinned it already, no second pin is added.

    Args:
        step: The step of the checkpoint; None for the newest checkpoint.

    Returns:
        The step of the pinned checkpoint.

    Raises:
        UnknownTrial: No such trial.
        NotFound: The trial keeps no such checkpoint; nothing was changed.
    """
    with database.begin() as txn:
        trial = existing_trial(txn, study, number, lock=True)  # saves and discards wait
        if recorded := events.data_of(txn, token=request.token):
            return int(recorded["step"])

        checkpoint_id, found = _count_pin(txn, study, number, trial_id=trial.id, step=step)

        events.append_request(
            txn,
            study_id=study.id,
            kind=EventKind.PINNED,
            request=request,
            data={"numbers": [number], "step": found},
        )
        if checkpoint_id is not None:
            pins.insert(
                txn,
                study_id=study.id,
                checkpoint_id=checkpoint_id,
                trial_id=None,
                actor=request.actor,
                reason=pins.PERSON,
                token=request.token,
            )
    return found


def unpin(
    database: Database, study: Study, number: int, request: Request, *, step: int | None = None
) -> list[int]:
    """
    Remove people's pins of a trial's checkpoints.

    A pin stays if it exists because another trial begins from the checkpoint.

    Args:
        step: The step of the checkpoints; None for all of the trial's checkpoints.

    Returns:
        The steps of the checkpoints whose pins were removed, in the order of the saves.

    Raises:
        UnknownTrial: No such trial.
    """
    with database.begin() as txn:
        trial = existing_trial(txn, study, number, lock=True)
        if recorded := events.data_of(txn, token=request.token):
            return list(recorded["steps"])

        pinned = pins.of_people(txn, trial_id=trial.id)
        chosen = [one for one in pinned if step in (None, one.step)]

        pins.remove(txn, checkpoint_ids=[one.id for one in chosen])
        steps = [one.step for one in chosen]
        events.append_request(
            txn,
            study_id=study.id,
            kind=EventKind.UNPINNED,
            request=request,
            data={"numbers": [number], "steps": steps},
        )
    return steps


def _count_pin(
    txn: Txn, study: Study, number: int, *, trial_id: int, step: int | None
) -> tuple[int | None, int]:
    """
    Choose a trial's newest kept checkpoint, or the newest of `step`, and add 1 to its `pins`.

    Returns:
        The checkpoint's id, or None if people have pinned the checkpoint already; and its step.
    """
    pinned = {one.id for one in pins.of_people(txn, trial_id=trial_id)}
    kept = [row for row, _ in checkpoint_listing.of_trial(txn, trial_id=trial_id)]
    for row in reversed(kept):
        if step in (None, row.step) and row.id is not None:
            if row.id in pinned:
                return None, row.step
            if pins.count(txn, checkpoint_id=row.id):  # False if the row was just marked as corrupt
                return row.id, row.step
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    raise NotFound(
        f"Trial {number} of {study.name!r} keeps {what} that can be pinned. "
        f"`studydb checkpoints {shlex.quote(study.name)} {number}` lists the kept checkpoints."
    )
