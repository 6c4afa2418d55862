"""Stop trials and delete their checkpoints."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from studydb.db import Database
from studydb.domain.errors import CheckpointError, NotAllowed
from studydb.domain.life.states import FINAL
from studydb.domain.records import Study
from studydb.domain.text.display import counted
from studydb.lease.checkpoint_rows import delete_removed
from studydb.operations import control
from studydb.operations.discard import discard
from studydb.operations.reads import find_trial
from studydb.operations.refresh import refreshed
from studydb.study.storage import read_patiently, write_patiently

Ask = Callable[..., Any]

LONGEST_WAIT_S = 60.0
"""The longest time that a call waits for the end of the trials that it has stopped."""

LOOK_S = 0.25


def stop_and_discard(
    ask: Ask, database: Database, study: Study, numbers: Sequence[int], *, now: bool
) -> None:
    """
    Stop trials, wait until they have ended, and delete their checkpoints.

    Pinned and corrupt checkpoints stay. If the checkpoints of one trial cannot be deleted, those of
    the other trials are deleted all the same, and the first error is raised at the end. After a
    crash or an error, the same call deletes the checkpoints that are left.

    Args:
        ask: Runs an operation as the request of a person; see `Study._ask_once`.
        now: See `control.stop`.

    Raises:
        UnknownTrial: A trial does not exist; nothing was changed.
        NotAllowed: A trial still runs after a minute; its checkpoints are kept.
        CheckpointError: A store cannot delete the bytes; no attempt restores these checkpoints.
    """
    for number in numbers:
        _state_of(database, study, number)  # raises UnknownTrial before a trial is stopped
    for number in numbers:
        with suppress(NotAllowed):  # the trial has ended
            ask(control.stop, [number], now=now)
    deadline = time.monotonic() + LONGEST_WAIT_S
    refusals: list[Exception] = []
    for number in numbers:
        while _state_of(database, study, number) not in FINAL and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        try:
            _discard(ask, database, study, number)
        except (NotAllowed, CheckpointError) as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _state_of(database: Database, study: Study, number: int) -> Any:
    return read_patiently(lambda: find_trial(database, study, number)).state


def _discard(ask: Ask, database: Database, study: Study, number: int) -> None:
    removed = ask(discard, number)
    current = read_patiently(lambda: refreshed(database, study))
    delete = partial(
        delete_removed,
        database,
        study,
        removed,
        trial_uuid=read_patiently(lambda: find_trial(database, study, number)).uuid,
        stores=database.locations.checkpoint_stores(current),
    )
    if left := write_patiently(database, delete):
        raise CheckpointError(
            f"Trial {number} of {study.name!r} has ended, and its checkpoints were removed, except "
            f"pinned ones. The store fails, so it still has the bytes of "
            f"{counted(len(left), 'removed checkpoint')} (the first is {left[0].url!r}). Repeat "
            "the command on a host that can write there."
        )
