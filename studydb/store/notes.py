"""Notes of people on studies and trials. Rows are never changed."""

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import by_id, note
from studydb.domain.listed_rows import ListedNote

_INSERT = Prepared(
    sa.insert(note).values(
        study_id=sa.bindparam("study_id"),
        trial_id=sa.bindparam("trial_id", type_=sa.BigInteger),
        author=sa.bindparam("author"),
        text=sa.bindparam("text"),
        at=now(),
    )
)


def _listed(of_trial: sa.ColumnElement[bool]) -> Prepared:
    return Prepared(
        sa.select(note.c.at, note.c.author, note.c.text)
        .where(note.c.study_id == sa.bindparam("study"), of_trial)
        .order_by(by_id(note).desc())
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


_OF_STUDY = _listed(note.c.trial_id.is_(None))
_OF_TRIAL = _listed(note.c.trial_id == sa.bindparam("trial"))


def insert(txn: Txn, *, study_id: int, trial_id: int | None, author: str, text: str) -> None:
    """Insert a note on a trial; without `trial_id`, on the study."""
    txn.run(_INSERT, study_id=study_id, trial_id=trial_id, author=author, text=text)


def newest(txn: Txn, *, study_id: int, trial_id: int | None, limit: int) -> list[ListedNote]:
    """Read the newest notes on a trial or, without `trial_id`, on the study; oldest first."""
    if trial_id is None:
        rows = txn.all(_OF_STUDY, study=study_id, limit=limit)
    else:
        rows = txn.all(_OF_TRIAL, study=study_id, trial=trial_id, limit=limit)
    return [ListedNote._make(row) for row in reversed(rows)]
