"""Give a study another name."""

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.errors import StudyExists
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.records import Request, Study
from studydb.domain.text.names import check_new_study_name
from studydb.store import events, studies


def rename(database: Database, study: Study, new_name: str, request: Request) -> None:
    """
    Rename a study. Its workers continue, because they use the study's id.

    Raises:
        InvalidName: The name breaks the rules for names.
        StudyExists: Another study has the name.
    """
    check_new_study_name(new_name)
    try:
        with database.begin() as txn:
            kind, data = EventKind.RENAMED, {"name": new_name}
            events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
            studies.rename(txn, study_id=study.id, name=new_name)
    except Duplicate:
        with database.begin(write=False) as txn:
            done = bool(events.data_of(txn, token=request.token))
        if not done:
            raise StudyExists(
                f"A study {new_name!r} already exists in {database.url}. Choose another name."
            ) from None
