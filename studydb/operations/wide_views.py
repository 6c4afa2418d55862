"""Make and drop the wide views of a study, and find the metrics that the views show."""

from collections.abc import Sequence

from studydb.db import Database, Txn, wide_view_sql
from studydb.db.wide_view_sql import WideView
from studydb.domain.records import Study


def metric_kinds(database: Database, study: Study) -> dict[str, bool]:
    """Tell for each known metric of a study whether it is numeric; see `wide_view_sql`."""
    with database.begin(write=False) as txn:
        return wide_view_sql.metric_kinds(txn, study_id=study.id)


def make_views(database: Database, study: Study, new: Sequence[WideView]) -> list[str]:
    """
    Replace all wide views of a study.

    Returns:
        The names of the old views that are not among the new views.

    Raises:
        NotAllowed: The name of a view is taken, or a view would have too many columns.
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
    Drop a study's wide views. If there are no views, the login needs no right to drop views.

    Returns:
        The names of the dropped views.
    """
    with database.begin(write=False) as txn:
        if not _of_study(txn, study):
            return []
    return make_views(database, study, [])


def _of_study(txn: Txn, study: Study) -> list[WideView]:
    return [view for view in wide_view_sql.found(txn) if view.study_id == study.id]
