"""The rungs that a scheduler reads, locked by the transaction of the report."""

from studydb.db import Txn
from studydb.domain.quantile import cutoff
from studydb.domain.view import RungView
from studydb.store import rungs
from studydb.store.rungs import Neighbours, Rung


class LockedView:
    """
    Implements `StudyView` for one trial.

    Attributes:
        locked: The locked rungs by step.
    """

    def __init__(self, txn: Txn, locked: dict[int, Rung], *, trial_id: int) -> None:
        self.locked, self._txn, self._trial_id = locked, txn, trial_id
        self._beside: dict[int, Neighbours] = {}

    def rung(self, step: int) -> RungView:
        """Return the rung at a step, as it was before this report."""
        rung, beside = self.locked[step], self.beside(step)
        return RungView(
            n=rung.cut.n,
            cutoff=cutoff(rung.cut, beside.better, rung.quantile),
            entered=beside.entered,
        )

    def beside(self, step: int) -> Neighbours:
        """Return the entries beside a rung's cut; they are read from the database once."""
        if step not in self._beside:
            self._beside[step] = rungs.neighbours(
                self._txn, rung=self.locked[step], trial_id=self._trial_id
            )
        return self._beside[step]
