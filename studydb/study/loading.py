"""Load a study; delete a study with its files."""

from contextlib import closing, suppress

from studydb.db import Database
from studydb.domain.arguments import flag
from studydb.domain.errors import UnknownStudy
from studydb.domain.records import Study as Record
from studydb.domain.text.names import check_study_name
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.lease.study_folders import check_study_folders
from studydb.operations.create import load
from studydb.operations.delete import begin_removal, delete, forget_stores, stop_for_deletion
from studydb.operations.recover import recover, recover_host
from studydb.operations.refresh import refreshed
from studydb.operations.wide_views import drop_views
from studydb.processes import is_alive, this_process
from studydb.study.handle import Study
from studydb.study.storage import closed_on_error, open_database, read_patiently, write_patiently


@suggesting_keywords
def load_study(name: str, *, storage: str | None = None) -> Study:
    """
    Load a study.

    Raises:
        UnknownStudy: The database has no study of that name.
        StorageError: The database cannot be used.
    """
    check_study_name(name)
    database = open_database(storage, make=False)
    with closed_on_error(database):
        return Study(database, read_patiently(lambda: load(database, name)))


@suggesting_keywords
def delete_study(name: str, *, storage: str | None = None, missing_ok: bool = False) -> None:
    """
    Delete a study with all its rows, its checkpoints, and its trials' files on this host.

    These files are the output of the attempts and the directories of the trials.

    Args:
        missing_ok: Whether to return without an error if the study does not exist.

    Raises:
        UnknownStudy: The database has no study of that name.
        NotAllowed: Trials of the study are running; this call has stopped the study. Or trials of
            other studies begin from checkpoints of this study, and these trials have not ended.
        CheckpointError: The bytes of a checkpoint cannot be removed; the study's rows are kept.
    """
    check_study_name(name)
    may_be_missing = flag("missing_ok", missing_ok)
    with closing(open_database(storage, make=False)) as database:
        try:
            study = read_patiently(lambda: load(database, name))
        except UnknownStudy:
            if may_be_missing:
                return
            raise
        with suppress(UnknownStudy):  # the reply to an earlier try's last COMMIT was lost
            write_patiently(database, lambda: _delete(database, study))


def _delete(database: Database, study: Record) -> None:
    """
    Delete the rows last, because after a crash the next call finds the files by the rows.

    The stores are read again, because this call may be a retry: an earlier call may have deleted
    the files and forgotten the stores, and then got no answer from the database.
    """
    study = refreshed(database, study)
    check_study_folders(database, study)
    recover_host(database, study, process=this_process(), is_alive=is_alive)
    recover(database, study)
    stop_for_deletion(database, study)
    drop_views(database, study)
    database.locations.remove_files(study)
    begin_removal(database, study)
    forget_stores(database, study)
    database.locations.remove_folders(study)
    delete(database, study)
