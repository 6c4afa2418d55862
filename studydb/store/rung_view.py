"""The rungs that a scheduler reads, locked by the transaction of the report."""

from studydb.db import Txn
from studydb.domain.life.decisions import RungKey
from studydb.domain.quantile import cutoff
from studydb.domain.scheduling import RungView
from studydb.store import rungs
from studydb.store.rungs import Neighbours, Rung


class LockedView:
    """
    Implements `StudyView` for one trial.

    Attributes:
        locked: The locked rungs.
    """

    def __init__(self, txn: Txn, locked: dict[RungKey, Rung], *, trial_id: int) -> None:
        self.locked, self._txn, self._trial_id = locked, txn, trial_id
        self._beside: dict[RungKey, Neighbours] = {}

    def rung(self, key: RungKey) -> RungView:
        """Return a locked rung, as it was before this report."""
        rung, beside = self.locked[key], self.beside(key)
        return RungView(
            n=rung.cut.n,
            cutoff=cutoff(rung.cut, beside.better, rung.quantile),
            entered=beside.entered,
        )

    def beside(self, key: RungKey) -> Neighbours:
        """Return the entries beside a rung's cut; they are read from the database once."""
        if key not in self._beside:
            self._beside[key] = rungs.neighbours(
                self._txn, rung=self.locked[key], trial_id=self._trial_id
            )
        return self._beside[key]
