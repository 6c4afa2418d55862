"""Find a study's last error, and describe why the study has failed."""

import shlex

from studydb.db import Database
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.records import LastError, Study
from studydb.domain.text.display import visible
from studydb.domain.trainable import TrainableKind
from studydb.operations.study_progress import StudyProgress
from studydb.store import events


def last_error(database: Database, study: Study) -> LastError | None:
    """Find the last attempt that failed or was lost with a known cause; see `events.last_error`."""
    with database.begin(write=False) as txn:
        return events.last_error(txn, study_id=study.id)


def describe_failure(database: Database, study: Study, progress: StudyProgress) -> str:
    """Describe why a study has failed, how to see its last error, and how to continue."""
    error, name = last_error(database, study), shlex.quote(study.name)
    if progress.pause_reason is not None:
        why = f"Study {study.name!r} has paused itself: {visible(progress.pause_reason)}"
        cure = f"{_correction(study, progress)}, then `studydb resume {name}`."
        if progress.paused_by is DecidedBy.GUARD:
            cure += " (--no-guard or guard=False at a study's creation prevents such a pause.)"
    else:
        last = f". The last was trial {error.number}: {visible(error.summary)}" if error else ""
        why = (
            f"No trial of study {study.name!r} has completed: {progress.counts.error} ended with "
            f"an error{last}"
        )
        more = "enqueue trials" if study.num_trials is None else "give the study more trials"
        command = "enqueue" if study.num_trials is None else "extend"
        correction = _correction(study, progress)
        again = f"run the trials again (`studydb retry {name} --errored`)"
        cure = f"{correction}, and {again}, {more} (`{command}`), or create the study anew."
    details = f" Details: `studydb show {name} {error.number}`." if error else ""
    return f"{why.rstrip('.')}.{details} {cure}"


def _correction(study: Study, progress: StudyProgress) -> str:
    """Say what to correct; a study that keeps a copy of the trainable's code needs a new copy."""
    trainable = study.trainable
    if trainable is None or trainable.kind not in (TrainableKind.PICKLE, TrainableKind.BOUND):
        return "Correct the cause"
    if progress.paused_by not in (None, DecidedBy.GUARD, DecidedBy.FAIL_FAST):
        # The fault is in the code of a rule, scheduler or resource function. Workers import this
        # code, so the study keeps no copy of it.
        return "Correct the cause"
    return (
        "The study keeps a copy of your code. Correct the cause, replace the copy by "
        "`study.set(trainable=train)`"
    )
