"""
The users' code of a study, with its signatures.

A row of `trainable` is the study's trainable, or the code of a rule, a scheduler or a resource
function.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.dialect import now
from studydb.db.schema import signature, trainable
from studydb.db.statement import Row
from studydb.domain.trainable import Trainable, TrainableRole

_GIVEN = (
    *("uuid", "study_id", "kind", "name", "workdir", "python_version"),
    *("source", "form", "role"),
)
_INSERT = Prepared(
    sa.insert(trainable)
    .values({name: sa.bindparam(name) for name in _GIVEN} | {"created_at": now()})
    .returning(trainable.c.id)
)
_INSERT_SIGNATURE = Prepared(
    sa.insert(signature).values({column.name: sa.bindparam(column.name) for column in signature.c})
)

_is_trainable = sa.and_(
    trainable.c.study_id == sa.bindparam("study"), trainable.c.role == TrainableRole.TRAINABLE
)
_WITH_SIGNATURES = Prepared(
    sa.select(trainable, signature.c.key_id, signature.c.mac)
    .outerjoin(signature, signature.c.trainable_id == trainable.c.id)
    .where(
        trainable.c.study_id == sa.bindparam("study"),
        trainable.c.role == sa.bindparam("of_role"),
    )
    .order_by(trainable.c.id)
)
"""
Reads the user's code that has a given role: one row for each signature, and one row for code
without a signature.

This is one statement, because a person may replace the trainable at any time: two statements could
read the old trainable and the new signatures.
"""

_of_study = sa.select(trainable.c.id).where(_is_trainable)
_DROP_SIGNATURES = Prepared(sa.delete(signature).where(signature.c.trainable_id.in_(_of_study)))
_DROP = Prepared(sa.delete(trainable).where(_is_trainable).returning(trainable.c.name))


def insert(txn: Txn, *, study_id: int, what: Trainable) -> None:
    """Insert a trainable, or code of a rule, scheduler or resource function, with signatures."""
    row = txn.all(
        _INSERT,
        uuid=what.uuid,
        study_id=study_id,
        kind=what.kind,
        name=what.name,
        workdir=what.workdir,
        python_version=what.python_version,
        source=what.source,
        form=what.form,
        role=what.role,
    )[0]
    for key_id, mac in what.signatures.items():
        txn.run(_INSERT_SIGNATURE, trainable_id=row.id, key_id=key_id, mac=mac)


def drop(txn: Txn, *, study_id: int) -> str | None:
    """Delete a study's trainable and signatures; return the trainable's name if there was one."""
    txn.run(_DROP_SIGNATURES, study=study_id)
    row = txn.first(_DROP, study=study_id)
    return None if row is None else str(row.name)


def newest(txn: Txn, *, study_id: int) -> Trainable | None:
    """Read a study's newest trainable with its signatures; None if own loops run the trials."""
    return next(reversed(with_role(txn, study_id=study_id, role=TrainableRole.TRAINABLE)), None)


def first(txn: Txn, *, study_id: int, role: TrainableRole) -> Trainable | None:
    """Read the user's code with this role that was stored first; None if there is none."""
    return next(iter(with_role(txn, study_id=study_id, role=role)), None)


def with_role(txn: Txn, *, study_id: int, role: TrainableRole) -> tuple[Trainable, ...]:
    """Read the user's code with this role, in the order of its creation, with its signatures."""
    rows = txn.all(_WITH_SIGNATURES, study=study_id, of_role=role)
    by_id = groupby(rows, key=attrgetter("id"))
    return tuple(_read(list(rows_of_one)) for _, rows_of_one in by_id)


def _read(rows: Sequence[Row]) -> Trainable:
    """Make a trainable from its rows, one for each signature."""
    row = rows[0]
    signatures = {each.key_id: each.mac for each in rows if each.key_id is not None}
    return Trainable(
        uuid=row.uuid,
        kind=row.kind,
        name=row.name,
        workdir=row.workdir,
        python_version=row.python_version,
        source=None if row.source is None else bytes(row.source),
        signatures=signatures,
        form=row.form,
        role=row.role,
    )
