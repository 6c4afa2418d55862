"""Read the trials that are new or may have changed since the last read; read params' hashes."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, structs

from studydb.db import Database
from studydb.domain.records import Study
from studydb.store import history, proposer
from studydb.store.history import SeenTrial

TRIALS_PER_READ = 2000
"""How many trials one statement reads at most."""


class KnownTrial(Struct, frozen=True):
    """The trial with the highest number that a reader knows."""

    number: int
    uuid: str


def read_history(
    database: Database,
    study: Study,
    *,
    unfinished: Iterable[int],
    invalid: set[int],
    last: KnownTrial | None,
) -> list[SeenTrial] | None:
    """
    Read the trials after `last`, and known trials that may have changed.

    All statements share a snapshot.

    Args:
        unfinished: The numbers of the trials that had not ended at the last read.
        invalid: The numbers of the trials that the last read found invalidated.
        last: The known trial with the highest number; None to read all trials.

    Returns:
        The trials, some of them unchanged. None if the database lacks the trial `last`: a backup
        was restored, and the reader must forget what it knows.
    """
    seen: list[SeenTrial] = []
    about: dict[str, Any] = {"study_id": study.id, "objective": study.objective}
    with database.begin(write=False, snapshot=True) as txn:
        if last is not None:
            found = history.listed(txn, numbers=[last.number], **about)
            if [trial.uuid for trial in found] != [last.uuid]:
                return None
        top = -1 if last is None else last.number
        changed = invalid.symmetric_difference(history.invalid(txn, study_id=study.id))
        known = sorted({*unfinished, *(number for number in changed if number <= top)})
        for start in range(0, len(known), TRIALS_PER_READ):
            numbers = known[start : start + TRIALS_PER_READ]
            seen += history.listed(txn, numbers=numbers, **about)
        while page := history.later(txn, after_number=top, limit=TRIALS_PER_READ, **about):
            seen += page
            top = page[-1].observation.number
    return [_with_floats(trial, study) for trial in seen]


def _with_floats(trial: SeenTrial, study: Study) -> SeenTrial:
    params = study.space.restore_floats(trial.observation.params)
    if params is trial.observation.params:
        return trial
    return trial._replace(observation=structs.replace(trial.observation, params=params))


def read_hashes(database: Database, study: Study) -> set[str]:
    """Read the hashes of the params of all trials and proposals of a study."""
    with database.begin(write=False) as txn:
        return proposer.all_hashes(txn, study_id=study.id)
