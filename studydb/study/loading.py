"""Load a study; delete a study with its files."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from studydb.artifacts import open_store
from studydb.db import Database
from studydb.domain.arguments import flag
from studydb.domain.errors import CheckpointError, UnknownStudy
from studydb.domain.records import Study as Record
from studydb.domain.text.names import check_study_name
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.lease.study_folders import unmounted_stores
from studydb.operations.create import load, reload
from studydb.operations.delete import begin_removal, delete, forget_stores, stop_for_deletion
from studydb.operations.recover import recover, recover_host
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
def delete_study(
    name: str,
    *,
    storage: str | None = None,
    missing_ok: bool = False,
    skip_failing_stores: bool = False,
) -> list[str]:
    """
    Delete a study with all its rows, its checkpoints, and its trials' files on this host.

    These files are the output of the attempts and the directories of the trials.

    Args:
        missing_ok: Whether to return without an error if the study does not exist.
        skip_failing_stores: Whether to delete the rows even if a store cannot remove the study's
            checkpoints, for example because its bucket or disk is gone for good. What such a store
            still holds stays there, and no row names it any more.

    Returns:
        The errors of the stores that were skipped; they may still hold checkpoints. Always empty
        without `skip_failing_stores`.

    Raises:
        UnknownStudy: The database has no study of that name.
        NotAllowed: Trials of the study are running; this call has stopped the study. Or trials of
            other studies begin from checkpoints of this study, and these trials have not ended.
        CheckpointError: The bytes of a checkpoint cannot be removed; the study's rows are kept.
    """
    check_study_name(name)
    may_be_missing = flag("missing_ok", missing_ok)
    skips = flag("skip_failing_stores", skip_failing_stores)
    skipped: dict[str, str] = {}
    with closing(open_database(storage, make=False)) as database:
        try:
            study = read_patiently(lambda: load(database, name))
        except UnknownStudy:
            if may_be_missing:
                return []
            raise
        with suppress(UnknownStudy):  # the reply to an earlier try's last COMMIT was lost
            write_patiently(database, lambda: _delete(database, study, skipped if skips else None))
    return list(skipped.values())


def _delete(database: Database, study: Record, skipped: dict[str, str] | None) -> None:
    """
    Delete the rows last, because after a crash the next call finds the files by the rows.

    If a store fails, its error is put into `skipped` by its URL, or raised if `skipped` is None.

    The study is read again, because this call may be a retry: an earlier call may have deleted the
    files and forgotten the stores, and then got no answer from the database.
    """
    study = reload(database, study)
    unmounted = unmounted_stores(database, study)
    for store, error in unmounted.items():
        with _skipping(study, store, skipped):
            raise error
    recover_host(database, study, process=this_process(), is_alive=is_alive)
    recover(database, study)
    stop_for_deletion(database, study)
    drop_views(database, study)
    for store in database.locations.checkpoint_stores(study).own():
        if store not in unmounted:
            with _skipping(study, store, skipped):
                open_store(store).delete_study(study.uuid)
    database.locations.remove_files(study)
    begin_removal(database, study)
    forget_stores(database, study, [*skipped] if skipped else [])
    database.locations.remove_folders(study)
    delete(database, study)


@contextmanager
def _skipping(study: Record, store: str, skipped: dict[str, str] | None) -> Iterator[None]:
    """
    Put a store's error into `skipped`, and remove it if the store answers at a later try.

    Raises:
        CheckpointError: The store fails, and `skipped` is None.
    """
    try:
        yield
    except CheckpointError as error:
        if skipped is None:
            raise CheckpointError(
                f"{error} If this store is gone for good, delete the study without it: "
                f"`studydb delete {shlex.quote(study.name)} --skip-failing-stores`."
            ) from error
        skipped[store] = str(error)
    else:
        if skipped is not None:
            skipped.pop(store, None)
