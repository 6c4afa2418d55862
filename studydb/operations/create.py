"""Create a study with its space, code, rungs and counters in one transaction; read studies."""

import shlex

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.errors import StudyExists, UnknownStudy
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import NewStudy, Study
from studydb.domain.text.suggestions import did_you_mean
from studydb.store import counters, events, resource_classes, rungs, studies, trainables


def create(database: Database, new: NewStudy, *, can_continue: bool = True) -> Study:
    """
    Create a study.

    Args:
        can_continue: See `name_taken`.

    Raises:
        StudyExists: The name is taken.
    """
    try:
        with database.begin() as txn:
            study_id = studies.insert(txn, new=new)
            counters.create(txn, study_id=study_id)
            if new.resources is not None:
                resource_classes.set_of_study(txn, study_id=study_id, asked=new.common_request)
            for spec in new.scheduler.rungs():
                rungs.create(txn, study_id=study_id, spec=spec)
            for code in (new.trainable, *new.rule_code, new.scheduler_code, new.request_code):
                if code is not None:
                    trainables.insert(txn, study_id=study_id, what=code)
            events.append(txn, study_id=study_id, kind=EventKind.CREATED, actor=new.created_by)
    except Duplicate:
        found = load(database, new.name)
        if found.uuid != new.uuid:  # if equal, an earlier send of this call made the study
            raise name_taken(new.name, url=database.url, can_continue=can_continue) from None
        return found
    return load(database, new.name)


def name_taken(name: str, *, url: str, can_continue: bool = True) -> StudyExists:
    """
    Make the error for a study whose name another study has.

    Args:
        can_continue: Whether the caller can open the study of this name instead.
    """
    to_continue = (
        "continue that study (load_if_exists=True, or --if-not-exists on the command line), "
        if can_continue
        else ""
    )
    return StudyExists(
        f"A study {name!r} already exists in {url}. Choose another name, {to_continue}or delete "
        f"it: `studydb delete {shlex.quote(name)} --yes`."
    )


def reload(database: Database, study: Study) -> Study:
    """Read a study again, with all that people have changed; UnknownStudy if it was deleted."""
    with database.begin(write=False) as txn:
        return studies.reread(txn, study_id=study.id)


def load(database: Database, name: str) -> Study:
    """
    Find a study by its name, and read it with its specs.

    Raises:
        UnknownStudy: No study has that name; the message suggests similar names.
    """
    with database.begin(write=False) as txn:
        study = studies.find(txn, name=name)
        if study is None:
            names = studies.names(txn)
            known = did_you_mean(name, names) or (
                " `studydb studies` lists them." if names else " That database has no studies yet."
            )
            raise UnknownStudy(f"There is no study {name!r} in {database.url}.{known}")
    return study
