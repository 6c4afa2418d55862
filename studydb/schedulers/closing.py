"""The base of synchronous schedulers: trials wait at a rung until it closes."""

from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Report, StudyView
from studydb.schedulers.base import BaseScheduler


class ClosingScheduler(BaseScheduler):
    """
    Pauses each trial at its rungs, and completes it at `max_t`.

    In a subclass, `locks` returns the rung of a step, and `next_work` says which rung closes.

    Attributes:
        max_t: The step that completes a trial; a field of each subclass.
    """

    max_t: int

    @property
    def resumes(self) -> bool:
        return True

    @property
    def closes_rungs(self) -> bool:
        return True

    def judge(self, report: Report, view: StudyView) -> Decision:
        """Complete a trial at `max_t`; pause it at an open rung; compare it at a closed rung."""
        if report.step >= self.max_t:
            return Decision(Action.STOP, Reason.COMPLETED)
        for key in self.locks(report.bracket, report.step):
            if not view.rung(key).entered:
                return _wait_at(key, report, view)
        return CONTINUE


def _wait_at(key: RungKey, report: Report, view: StudyView) -> Decision:
    """
    Pause a trial at its rung until the rung closes.

    NaN stops the trial. If the rung has closed already, the trial is stopped if it is worse than
    all trials that were kept; otherwise it goes on.
    """
    rung, entry = view.rung(key), Entry(key, report.score)
    worst = rung.closed_cutoff
    is_worse = worst is None or report.score > worst
    if report.is_nan or (rung.is_closed and is_worse):
        return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, worst)
    if rung.is_closed:
        return Decision(entry=entry, cutoff=worst)
    return Decision(Action.PAUSE, Reason.PAUSED, Entry(key, report.score, waits=True))
