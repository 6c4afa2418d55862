"""Change where the checkpoints of a living study go."""

from contextlib import suppress
from dataclasses import replace

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.records import Study
from studydb.store import events, studies


def relocate(database: Database, study: Study, url: str, *, token: str, actor: str) -> None:
    """
    Have attempts that begin from now on save to another store; the former ones stay readable.

    Args:
        url: The URL of a store, checked by the caller.
        token: Random, used for one request only; sent again after a lost reply.
    """
    with suppress(Duplicate), database.begin() as txn:
        data = {"checkpoints": url}
        events.append(
            txn, study_id=study.id, kind="checkpoints set", actor=actor, data=data, token=token
        )
        studies.relocate(txn, study_id=study.id, url=url)


def located(database: Database, study: Study) -> Study:
    """The study with the stores of its checkpoints as they are now; a process may hold it long."""
    with database.begin(write=False) as txn:
        current, former = studies.places(txn, study_id=study.id)
    return replace(study, checkpoints=current, former_checkpoints=former)
