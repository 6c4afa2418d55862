"""Count a study's results, its rung entries, and the results after a decision to stop or pause."""

from typing import NamedTuple

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.schema import result
from studydb.domain.life.decisions import Action

_STUDY = sa.bindparam("study", type_=sa.BigInteger)

_entries = rung_entry.join(rung, rung.c.id == rung_entry.c.rung_id)
_LATER = sa.and_(
    result.c.study_id == _STUDY,
    result.c.trial_id == rung_entry.c.trial_id,
    result.c.attempt == rung_entry.c.attempt,
    result.c.step > rung_entry.c.step,
)

_COUNTS = Prepared(
    sa.select(
        sa.select(sa.func.count())
        .where(result.c.study_id == _STUDY)
        .scalar_subquery()
        .label("n_stored"),
        sa.select(sa.func.count())
        .select_from(_entries)
        .where(rung.c.study_id == _STUDY)
        .scalar_subquery()
        .label("n_judged"),
        sa.select(sa.func.count())
        .select_from(_entries.join(result, _LATER))
        .where(rung.c.study_id == _STUDY, rung_entry.c.action != Action.CONTINUE)
        .scalar_subquery()
        .label("n_after_decision"),
    )
)


class Reported(NamedTuple):
    """
    Counts of a study's results and rung entries; results that are not live count, too.

    Attributes:
        n_stored: All results.
        n_judged: The entries of all rungs.
        n_after_decision: The results of steps after the step at which the scheduler decided to stop
            or pause the attempt.
    """

    n_stored: int
    n_judged: int
    n_after_decision: int


def count_reports(txn: Txn, *, study_id: int) -> Reported:
    """Count a study's results and rung entries; this reads all of them."""
    found = txn.first(_COUNTS, study=study_id)
    assert found is not None
    return Reported(found.n_stored, found.n_judged, found.n_after_decision)
