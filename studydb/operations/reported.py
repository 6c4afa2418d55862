"""Count a study's results, its rung entries, and the results after a decision to stop or pause."""

from studydb.db import Database
from studydb.domain.records import Study
from studydb.store import reported
from studydb.store.reported import Reported


def count_reports(database: Database, study: Study) -> Reported:
    """Count by reading all rows of the study; a million results take seconds."""
    with database.begin(write=False, single=True) as txn:
        return reported.count_reports(txn, study_id=study.id)
