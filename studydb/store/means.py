"""
Running means: for each trial, the sum and the number of its live values up to a stored step.

The values before the step `mean_from` of the study's scheduler do not count. A report adds only the
results after the stored sum's last step, so that a mean costs the same at any step. Values are
added one by one in the order of steps, so that the sum does not depend on how results are divided
into batches.
"""

import math
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from msgspec import Struct, structs

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import running_mean
from studydb.db.schema import attempt, result
from studydb.domain.metrics import Result
from studydb.domain.records import Lease
from studydb.store.results import IS_LIVE

_OF_TRIAL = running_mean.c.trial_id == sa.bindparam("trial")
_READ = Prepared(sa.select(running_mean).where(_OF_TRIAL))
_SINCE = Prepared(
    sa.select(result.c.step, result.c.value)
    .join(attempt, IS_LIVE)
    .where(
        result.c.study_id == sa.bindparam("study"),
        result.c.trial_id == sa.bindparam("trial"),
        result.c.step > sa.bindparam("after", type_=sa.BigInteger),
    )
    .order_by(result.c.step)
)
_VALUES: dict[str, Any] = {
    "step": sa.bindparam("to_step"),
    "n_results": sa.bindparam("to_n"),
    "total": sa.bindparam("to_total", type_=running_mean.c.total.type),
}
_INSERT = Prepared(
    sa.insert(running_mean).values(
        _VALUES | {"trial_id": sa.bindparam("trial"), "study_id": sa.bindparam("study")}
    )
)
_UPDATE = Prepared(sa.update(running_mean).where(_OF_TRIAL).values(_VALUES))
_FORGET = Prepared(
    sa.update(running_mean)
    .where(_OF_TRIAL, running_mean.c.step >= sa.bindparam("from_step"))
    .values(step=0, n_results=0, total=0.0)
)


class RunningMean(Struct, frozen=True):
    """
    The sum of a trial's live values up to a step.

    Attributes:
        step: The last step whose value is in `total`. If there is none, the step before the first
            step that counts.
        is_stored: Whether the trial has a row in the table `running_mean`.
    """

    step: int = 0
    n: int = 0
    total: float = 0.0
    is_stored: bool = False

    @property
    def value(self) -> float:
        """The mean; NaN without values."""
        return self.total / self.n if self.n else math.nan

    def add(self, results: Iterable[Result]) -> "RunningMean":
        """Add the results of later steps; results that are in the sum already are skipped."""
        step, n, total = self.step, self.n, self.total
        for one in results:
            if one.step > step:
                step, n, total = one.step, n + 1, total + one.value
        return structs.replace(self, step=step, n=n, total=total)


def read(txn: Txn, *, lease: Lease, first: int) -> RunningMean:
    """Read the running mean of a trial's stored live results from step `first` on."""
    row = txn.first(_READ, trial=lease.trial_id)
    known = RunningMean(first - 1)
    if row is not None:
        known = RunningMean(max(first - 1, row.step), row.n_results, row.total, is_stored=True)
    since = txn.all(_SINCE, study=lease.study_id, trial=lease.trial_id, after=known.step)
    return known.add(Result(row.step, row.value, {}) for row in since)


def store(txn: Txn, *, lease: Lease, mean: RunningMean) -> None:
    """Store a running mean of a trial, which the caller has locked by `leases.hold`."""
    given = {"to_step": mean.step, "to_n": mean.n, "to_total": mean.total}
    if mean.is_stored:
        txn.run(_UPDATE, trial=lease.trial_id, **given)
    else:
        txn.run(_INSERT, trial=lease.trial_id, study=lease.study_id, **given)


def forget(txn: Txn, *, lease: Lease, step: int) -> None:
    """Reset a trial's stored sum if the sum has values of `step` or of later steps."""
    txn.run(_FORGET, trial=lease.trial_id, from_step=step)
