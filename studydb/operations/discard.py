"""Mark the checkpoints of an ended trial as removed, so that their bytes can be deleted."""

from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import FINAL
from studydb.domain.records import Request, Study
from studydb.operations.reads import existing_trial
from studydb.store import checkpoints, events, quotas


def discard(database: Database, study: Study, number: int, request: Request) -> list[Checkpoint]:
    """
    Mark all checkpoints of an ended trial as removed, except pinned and corrupt ones.

    No attempt restores a removed checkpoint. A pinned checkpoint stays, because another trial may
    restore it, or a person wants to keep it. The row of a corrupt checkpoint stays as evidence.

    Returns:
        All removed checkpoints of the trial that still have rows, except corrupt ones; some may
        have been removed earlier. The caller deletes their bytes, then their rows (`delete_rows`).

    Raises:
        UnknownTrial: No such trial.
        NotAllowed: The trial has not ended; nothing was changed.
    """
    with suppress(Duplicate), database.begin() as txn:
        events.append_request(
            txn,
            study_id=study.id,
            kind=EventKind.CHECKPOINTS_DISCARDED,
            request=request,
            data={"numbers": [number]},
        )
        trial = existing_trial(txn, study, number, lock=True)  # `retry` and `pin` wait
        if trial.state not in FINAL:
            raise NotAllowed(
                f"Trial {number} of {study.name!r} is {trial.state}, so its checkpoints are kept. "
                "Repeat the command when the trial has ended."
            )
        size_bytes = checkpoints.discard(txn, trial_id=trial.id)
        quotas.add(txn, study_id=study.id, size_bytes=-size_bytes)
    with database.begin(write=False) as txn:
        trial = existing_trial(txn, study, number)
        return checkpoints.expired(txn, trial_id=trial.id)
