"""Delete a study with all its rows; a transaction deletes at most 500 trials."""

import shlex
from collections.abc import Sequence

from studydb.db import Database, Txn
from studydb.domain.errors import NotAllowed, UnknownStudy
from studydb.domain.life.states import Status
from studydb.domain.records import Study
from studydb.domain.text.display import counted
from studydb.store import claims, counters, deletion, studies, sweeps


def stop_for_deletion(database: Database, study: Study) -> None:
    """
    Stop a study, and mark that its deletion begins.

    From then on no trial of the study starts, and no new trial of another study begins from one of
    its checkpoints, so the study's files can be removed. One gap is left (ARCHITECTURE.md): a trial
    that becomes PENDING while this transaction runs can be claimed until the COMMIT.

    Raises:
        NotAllowed: Trials are RUNNING; the study has been stopped. Or unfinished trials of other
            studies begin from checkpoints of this study; nothing has been changed.
    """
    with database.begin() as txn:
        claims.await_claims(txn, study_id=study.id)  # lock order: trials before the study
        studies.set_status(txn, study_id=study.id, status=Status.STOPPED)
        # A lost trial that recovery cannot end is still RUNNING. It must not block the deletion.
        abandoned = sweeps.count_lost(txn, study_id=study.id)
        running = counters.read(txn, study_id=study.id).running - abandoned
        if running <= 0:
            _refuse_if_checkpoints_are_needed(txn, study)
            deletion.mark_deleting(txn, study_id=study.id)
    if running > 0:
        verb = "is" if running == 1 else "are"
        raise NotAllowed(
            f"{counted(running, 'trial')} of study {study.name!r} {verb} running. The study is "
            "stopped now. Repeat the deletion when no trial is running. If a worker has died, "
            "repeat it when the leases of its trials have expired, and once more 20 s later."
        )


def _refuse_if_checkpoints_are_needed(txn: Txn, study: Study) -> None:
    needing = deletion.needing(txn, study_id=study.id)
    if needing:
        who = ", ".join(f"trial {one.number} of {one.study!r}" for one in needing)
        first = needing[0]
        more = ", and perhaps more" if len(needing) == deletion.MOST_NEEDING else ""
        raise NotAllowed(
            f"Trials of other studies begin from checkpoints of study {study.name!r}, and have not "
            f"ended: {who}{more}. Nothing was deleted. Wait until these trials have ended, or "
            f"stop each: `studydb stop {shlex.quote(first.study)} {first.number}`."
        )


def begin_removal(database: Database, study: Study) -> None:
    """
    Store that the study's files are removed; from then on, the study can only be deleted.

    Raises:
        NotAllowed: After `stop_for_deletion`, a person has resumed, paused or stopped the study.
    """
    with database.begin() as txn:
        is_marked = studies.mark_half_deleted(txn, study_id=study.id)
    if not is_marked:
        raise NotAllowed(
            f"A person has resumed, paused or stopped study {study.name!r} during its deletion. "
            "Its rows are kept, but checkpoints may be missing. To delete the study, repeat the "
            "deletion."
        )


def forget_stores(database: Database, study: Study, failing: Sequence[str] = ()) -> None:
    """
    Record that no store outside the database, except `failing`, holds files of the study any more.

    If the deletion fails later, a repeated deletion need not reach these stores, and names only
    the stores `failing` again.
    """
    with database.begin() as txn:
        studies.forget_stores(txn, study_id=study.id, failing=failing)


def delete(database: Database, study: Study) -> None:
    """
    Delete a study. After a crash, the same call deletes the remaining rows, if there are any.

    Raises:
        NotAllowed: See `stop_for_deletion` and `begin_removal`.
    """
    stop_for_deletion(database, study)
    try:
        begin_removal(database, study)
    except UnknownStudy:  # an earlier call has deleted the study, and its reply was lost
        return
    while not _delete_if_empty(database, study):
        with database.begin() as txn:
            deletion.delete_some_trials(txn, study_id=study.id)


def _delete_if_empty(database: Database, study: Study) -> bool:
    """Delete the study if it has no trial; a lock keeps other processes from adding trials."""
    with database.begin() as txn:
        deletion.lock_study(txn, study_id=study.id)
        if deletion.has_trials(txn, study_id=study.id):
            txn.abandon()
            return False

        deletion.delete_rest(txn, study_id=study.id)
    return True
