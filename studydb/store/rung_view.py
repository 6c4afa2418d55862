"""What a scheduler sees: the rungs that its report's transaction has locked."""

from studydb.db import Txn
from studydb.domain.quantile import cutoff
from studydb.domain.view import RungView
from studydb.store import rungs
from studydb.store.rungs import Neighbours, Rung


class LockedView:
    """Implements `StudyView` for one trial on rungs locked before its row."""

    def __init__(self, txn: Txn, locked: dict[int, Rung], *, trial_id: int) -> None:
        """Look at rungs by their step."""
        self._txn, self._locked, self._trial_id = txn, locked, trial_id
        self._beside: dict[int, Neighbours] = {}

    def rung(self, step: int) -> RungView:
        """The rung at that milestone, as it was before this report."""
        rung, beside = self._locked[step], self.beside(step)
        return RungView(
            n=rung.cut.n,
            cutoff=cutoff(rung.cut, beside.better, rung.quantile),
            entered=beside.entered,
        )

    def beside(self, step: int) -> Neighbours:
        """The entries beside the rung's cut, read once."""
        if step not in self._beside:
            self._beside[step] = rungs.neighbours(
                self._txn, rung=self._locked[step], trial_id=self._trial_id
            )
        return self._beside[step]
