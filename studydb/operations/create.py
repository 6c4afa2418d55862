"""Create a study: its row, space, trainable, rungs and counters in one transaction."""

import shlex
from dataclasses import dataclass
from typing import Any

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.errors import StudyExists, UnknownStudy
from studydb.domain.life.rules import Threshold
from studydb.domain.life.states import Mode, Status
from studydb.domain.records import Study, Trainable
from studydb.domain.space.search_space import Space
from studydb.domain.text.suggestions import did_you_mean
from studydb.domain.view import Scheduler, Searcher
from studydb.store import counters, events, rungs, studies


@dataclass(frozen=True, slots=True)
class NewStudy:
    """
    What `create` is asked for, checked; the names are those of `Study`.

    Attributes:
        uuid: Made by the caller: signatures of the trainable name it, and a resend is known by it.
    """

    uuid: str
    name: str
    metric: str
    mode: Mode
    seed: int
    space: Space
    scheduler: Scheduler
    searcher: Searcher | None
    rules: tuple[Threshold, ...]
    num_trials: int | None
    max_concurrent: int | None
    max_failures: int
    max_losses: int
    checkpoints: str | None
    trainable: Trainable | None
    created_by: str
    guard: bool = True
    losses_at_step: int | None = None


def create(database: Database, new: NewStudy) -> Study:
    """
    Create a study.

    Raises:
        StudyExists: The name is taken.
    """
    try:
        with database.begin() as txn:
            study_id = studies.insert(txn, columns=_columns(new), space=new.space)
            counters.create(txn, study_id=study_id)
            for spec in new.scheduler.rungs():
                rungs.create(txn, study_id=study_id, spec=spec)
            if new.trainable is not None:
                studies.insert_trainable(txn, study_id=study_id, what=new.trainable)
            events.append(txn, study_id=study_id, kind="created", actor=new.created_by)
    except Duplicate:
        found = load(database, new.name)
        if found.uuid != new.uuid:  # else it is our own, sent again
            raise StudyExists(
                f"There is a study {new.name!r} in {database.url} already. Choose another name; "
                "or go on with it: load_if_exists=True, on the command line --if-not-exists; or "
                f"delete it: `studydb delete {shlex.quote(new.name)} --yes`."
            ) from None
        return found
    return load(database, new.name)


def _columns(new: NewStudy) -> dict[str, Any]:
    num_draws = new.searcher.size(new.space) if new.searcher else 0
    return {
        "uuid": new.uuid,
        "name": new.name,
        "status": Status.RUNNING,
        "metric": new.metric,
        "mode": new.mode,
        "seed": new.seed,
        "scheduler": new.scheduler.to_json(),
        "searcher": new.searcher.to_json() if new.searcher else None,
        "rules": [rule.to_json() for rule in new.rules],
        "num_trials": new.num_trials,
        "num_draws": num_draws,
        "max_concurrent": new.max_concurrent,
        "max_failures": new.max_failures,
        "max_losses": new.max_losses,
        "checkpoints": new.checkpoints,
        "settings": {"guard": new.guard, "losses_at_step": new.losses_at_step},
        "created_by": new.created_by,
    }


def load(database: Database, name: str) -> Study:
    """
    Read a study with its specs.

    Raises:
        UnknownStudy: No study of that name; the message has near names.
    """
    with database.begin(write=False) as txn:
        study = studies.find(txn, name=name)
        if study is None:
            names = studies.names(txn)
            known = did_you_mean(name, names) or (
                " `studydb studies` lists them." if names else " It holds none yet."
            )
            raise UnknownStudy(f"There is no study {name!r} in {database.url}.{known}")
    return study
