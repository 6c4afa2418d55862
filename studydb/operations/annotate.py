"""Write and read the notes of people on a study and its trials; add and remove tags of trials."""

from collections.abc import Sequence
from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate
from studydb.domain.errors import InvalidName
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.listed_rows import ListedNote
from studydb.domain.records import Request, Study
from studydb.domain.text.names import MOST_TAGS
from studydb.operations.reads import existing_trial
from studydb.store import events, notes, studies, tags, trials

MOST_NOTES = 100
"""How many notes on a study or a trial are read, unless the caller gives a number."""


def note(
    database: Database, study: Study, request: Request, *, text: str, number: int | None = None
) -> None:
    """
    Add a note to a trial; without `number`, to the study.

    Raises:
        UnknownTrial: No such trial.
    """
    with suppress(Duplicate), database.begin() as txn:
        data = {} if number is None else {"number": number}
        events.append_request(
            txn, study_id=study.id, kind=EventKind.NOTED, request=request, data=data
        )
        trial_id = None if number is None else existing_trial(txn, study, number).id
        studies.check_exists(txn, study_id=study.id)
        notes.insert(txn, study_id=study.id, trial_id=trial_id, author=request.actor, text=text)


def tag(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    request: Request,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> None:
    """
    Add tags to trials in any state, and remove tags.

    To add a tag that a trial has, or to remove a tag that it lacks, changes nothing.

    Args:
        add, remove: Tags that `check_tags` has accepted.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        InvalidName: A trial would have too many tags; nothing was changed.
    """
    wanted = sorted(set(numbers))
    with suppress(Duplicate), database.begin() as txn:
        data = {"numbers": wanted, "added": list(add), "removed": list(remove)}
        events.append_request(
            txn, study_id=study.id, kind=EventKind.TAGGED, request=request, data=data
        )
        ids = trials.ids(txn, study_id=study.id, numbers=wanted)
        for number in wanted if len(ids) < len(wanted) else ():
            existing_trial(txn, study, number)  # raises UnknownTrial for the missing trial

        if add:
            tags.mark(txn, trial_ids=ids)  # locks the trials, before their tags
        tags.remove(txn, study_id=study.id, trial_ids=ids, tags=remove)
        for key in add:
            tags.add(txn, study_id=study.id, trial_ids=ids, tag=key)
        if tags.most(txn, study_id=study.id, trial_ids=ids) > MOST_TAGS:
            raise InvalidName(
                f"A trial of study {study.name!r} would have more than {MOST_TAGS} tags; remove "
                "some first."
            )


def read_notes(
    database: Database, study: Study, *, number: int | None = None, limit: int = MOST_NOTES
) -> list[ListedNote]:
    """
    Read the newest `limit` notes on a trial (without `number`: on the study), oldest first.

    Raises:
        UnknownTrial: No such trial.
    """
    with database.begin(write=False) as txn:
        trial_id = None if number is None else existing_trial(txn, study, number).id
        found = notes.newest(txn, study_id=study.id, trial_id=trial_id, limit=limit)
        if not found:
            studies.check_exists(txn, study_id=study.id)
        return found
