"""The rungs that a scheduler reads: those that the transaction of the report has locked."""

from studydb.db import Txn
from studydb.domain.quantile import cutoff
from studydb.domain.view import RungView
from studydb.store import rungs
from studydb.store.rungs import Neighbours, Rung


class LockedView:
    """Implements `StudyView` for one trial, on rungs that were locked before the trial's row."""

    def __init__(self, txn: Txn, locked: dict[int, Rung], *, trial_id: int) -> None:
        """Read from these locked rungs, which are given by their step."""
        self._txn, self._locked, self._trial_id = txn, locked, trial_id
        self._beside: dict[int, Neighbours] = {}

    def rung(self, step: int) -> RungView:
        """Return the rung at a step, as it was before this report."""
        rung, beside = self._locked[step], self.beside(step)
        return RungView(
            n=rung.cut.n,
            cutoff=cutoff(rung.cut, beside.better, rung.quantile),
            entered=beside.entered,
        )

    def beside(self, step: int) -> Neighbours:
        """Return the entries beside a rung's cut, which are read once."""
        if step not in self._beside:
            self._beside[step] = rungs.neighbours(
                self._txn, rung=self._locked[step], trial_id=self._trial_id
            )
        return self._beside[step]
