"""Make and drop the wide views of a study: on demand, because DDL has no place in `create`."""

from collections.abc import Sequence

from studydb.db import Database, Txn, wide_view_sql
from studydb.db.wide_view_sql import WideView
from studydb.domain.records import Study


def metric_kinds(database: Database, study: Study) -> dict[str, bool]:
    """Whether each metric that the study's trials have reported is a number throughout."""
    with database.begin(write=False) as txn:
        return wide_view_sql.metric_kinds(txn, study_id=study.id)


def make_views(database: Database, study: Study, new: Sequence[WideView]) -> list[str]:
    """
    Make a study's wide views in the place of those that it has, under whatever names.

    Returns:
        The names of those that are gone and have not been made again.

    Raises:
        NotAllowed: Something else has the name of one, or it would have too many columns.
    """
    with database.begin() as txn:
        wide_view_sql.lock(txn)
        old = _of_study(txn, study)

        wide_view_sql.drop(txn, old)
        for view in new:
            wide_view_sql.make(txn, view)
    made = {view.name for view in new}
    return [view.name for view in old if view.name not in made]


def drop_views(database: Database, study: Study) -> list[str]:
    """
    Drop a study's wide views, if it has any; who could not make views may call this, too.

    Returns:
        Their names.
    """
    with database.begin(write=False) as txn:
        if not _of_study(txn, study):
            return []
    return make_views(database, study, [])


def _of_study(txn: Txn, study: Study) -> list[WideView]:
    return [view for view in wide_view_sql.found(txn) if view.study_id == study.id]
