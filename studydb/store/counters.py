"""Counters of a study: its trials in each state, and what the trials have spent."""

from zlib import crc32

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.schema import counter
from studydb.domain.life.states import State
from studydb.domain.limits import Spending
from studydb.domain.records import Counts

SHARDS = 32
"""
The number of counter rows (shards) of a study. A transaction holds the lock of one shard until its
COMMIT returns, and a COMMIT may wait for the disk. With 32 shards, workers rarely wait for one
another. The rows are created with the study, so a change of the number needs a migration.

Claims and ends of attempts compute the shard from the attempt's token, not from the worker, so that
the claims of one worker are spread over all shards. While a snapshot stays open, PostgreSQL keeps
all old versions of a row, and each update of the row reads them. With one shard, an update took
1.5 ms after 20,000 claims; with 32 shards each row has fewer old versions.
"""

_BINDS = {state: f"by_{state.lower()}" for state in State}

MOVE = (
    sa.update(counter)
    .where(counter.c.study_id == sa.bindparam("study"), counter.c.shard == sa.bindparam("shard_no"))
    .values(
        {
            state.lower(): counter.c[state.lower()] + sa.bindparam(bind, 0)
            for state, bind in _BINDS.items()
        }
    )
)
_MOVE = Prepared(MOVE)

_INSERT = Prepared(
    sa.insert(counter).values(
        {state.lower(): 0 for state in State}
        | {"study_id": sa.bindparam("study"), "shard": sa.bindparam("shard_no")}
    )
)

_SPENDING = (counter.c.cost, counter.c.steps, counter.c.time_s)
_SPEND = Prepared(
    sa.update(counter)
    .where(counter.c.study_id == sa.bindparam("study"), counter.c.shard == sa.bindparam("shard_no"))
    .values({each.name: each + sa.bindparam(f"by_{each.name}") for each in _SPENDING})
)
_SPENT = Prepared(
    sa.select(*(sa.func.coalesce(sa.func.sum(each), 0) for each in _SPENDING)).where(
        counter.c.study_id == sa.bindparam("study")
    )
)

SUMS = sa.select(
    *(
        sa.func.coalesce(sa.func.sum(counter.c[state.lower()]), 0).label(state.lower())
        for state in State
    )
).where(counter.c.study_id == sa.bindparam("study"))
"""The number of a study's trials in each state."""

_READ = Prepared(SUMS)


def create(txn: Txn, *, study_id: int) -> None:
    """Insert the shards of a new study."""
    for shard in range(SHARDS):
        txn.run(_INSERT, study=study_id, shard_no=shard)


def move(
    txn: Txn, *, study_id: int, key: int | str, out_of: State | None, into: State | None, n: int = 1
) -> None:
    """
    Move `n` trials between the counts of two states. A transaction locks the shard's row last.

    Args:
        key: An attempt's token or a number, from which the shard is computed.
        out_of: The state before; None for new trials.
        into: The state after; None to add to no state.
    """
    txn.run(_MOVE, study=study_id, **binds(key=key, out_of=out_of, into=into, n=n))


def binds(
    *, key: int | str, out_of: State | None, into: State | None, n: int = 1
) -> dict[str, int]:
    """Return the binds of `MOVE`, except the id of the study; see `move`."""
    change = {"shard_no": _shard(key)}
    if out_of is not None:
        change[_BINDS[out_of]] = -n
    if into is not None:
        change[_BINDS[into]] = change.get(_BINDS[into], 0) + n
    return change


def _shard(key: int | str) -> int:
    return (key if isinstance(key, int) else crc32(key.encode())) % SHARDS


def spend(txn: Txn, *, study_id: int, key: int | str, spending: Spending) -> None:
    """Add what trials have spent; the caller has locked the study's row. For `key` see `move`."""
    amounts = {f"by_{name}": value for name, value in spending._asdict().items()}
    txn.run(_SPEND, study=study_id, shard_no=_shard(key), **amounts)


def spent(txn: Txn, *, study_id: int) -> Spending:
    """Sum up what the trials of a study have spent; exact if the study's row is locked."""
    cost, steps, time_s = txn.all(_SPENT, study=study_id)[0]
    return Spending(float(cost), int(steps), float(time_s))


def read(txn: Txn, *, study_id: int) -> Counts:
    """Count a study's trials in each state, summed up over the shards."""
    return Counts(*map(int, txn.all(_READ, study=study_id)[0]))
