"""A trainable, and custom schedulers: some are correct, and the others fail in various ways."""

import math
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import studydb
from studydb import Action, Close, Decision, Entry, Idle, Reason, RungKey


@dataclass(frozen=True)
class Cup(studydb.CustomScheduler):
    """
    A trial pauses at each open rung; NaN stops it. The better half goes on when the rung is closed.

    A rung is closed when no new trial may start and all trials underway have reached the rung. A
    trial that reaches a closed rung goes on if it is not worse than the worst trial that was kept.
    """

    max_t: int = 9
    milestones: tuple = (2, 4)
    brackets: int = 1
    folder: str = ""
    resumes = True

    def judge(self, report, view):
        self.write_down(f"judge {report.trial_id} {report.step} {view.rung().n_entries}")
        rung, entry = view.rung(), Entry(view.key, report.score)
        worst = rung.closed_cutoff
        if report.is_nan or (rung.is_closed and (worst is None or report.score > worst)):
            return Decision(Action.STOP, Reason.EARLY_STOPPED, entry, worst)
        if rung.is_closed:
            return Decision(entry=entry, cutoff=worst)
        return Decision(Action.PAUSE, entry=Entry(view.key, report.score, waits=True))

    def next_work(self, view):
        self.write_down("next_work")
        for key in view.rungs():
            if view.rung(key).is_closed and view.best_waiting(key):
                return view.best_waiting(key)
        for key in view.rungs():
            if not view.rung(key).is_closed and self.is_complete(key, view):
                return Close(key, math.ceil(view.rung(key).n / 2))
        return Idle.START_NEW if view.may_start else Idle.WAIT

    def is_complete(self, key, view):
        return not view.may_start and all(step >= key.step for step in view.underway(key.bracket))

    def write_down(self, line):
        if self.folder:
            with (Path(self.folder) / "asked").open("a") as file:
                file.write(f"{os.getpid()} {line}\n")


@dataclass(frozen=True)
class BetterHalf(studydb.CustomScheduler):
    """Stop a trial whose mean or best score is worse than the median of 3 or more ranked scores."""

    interval: int = 2
    max_t: int = 9
    by_mean: bool = True
    reads_mean = True
    reads_best = 3

    def judge(self, _report, view):
        score = view.mean() if self.by_mean else view.best_score()
        entry, cutoff = Entry(view.key, score), view.rung().cutoff
        best = view.best(view.key, 3)
        assert [one.score for one in best] == sorted(one.score for one in best)
        if len(best) == 3 and score > cutoff:
            return Decision(Action.STOP, entry=entry, cutoff=cutoff)
        return Decision(entry=entry, cutoff=cutoff)


@dataclass(frozen=True)
class Halving(studydb.CustomScheduler):
    """studydb's ASHA, by stopping or by promotion, as a user might write it."""

    max_t: int = 9
    grace_period: int = 1
    reduction_factor: int = 3
    type: str = "stopping"

    @property
    def milestones(self):
        powers = (self.grace_period * self.reduction_factor**k for k in range(9))
        return tuple(step for step in powers if step < self.max_t)

    @property
    def quantile(self):
        return (1 - 1 / self.reduction_factor) * 100 / 100

    @property
    def resumes(self):
        return self.type == "promotion"

    def judge(self, report, view):
        cutoff = None if self.resumes else view.rung().cutoff
        entry = Entry(view.key, report.score, waits=self.resumes and not report.is_nan)
        if report.is_nan or (cutoff is not None and report.score > cutoff):
            return Decision(Action.STOP, entry=entry, cutoff=cutoff)
        action = Action.PAUSE if self.resumes else Action.CONTINUE
        return Decision(action, entry=entry, cutoff=cutoff)

    def next_work(self, view):
        for key in sorted(view.rungs(), key=lambda key: -key.step):
            best, rung = view.best_waiting(key), view.rung(key)
            if best and rung.n > 1 and best.score < math.inf and best.score <= rung.cutoff:
                return best
        return Idle.START_NEW


@dataclass(frozen=True)
class Growing(Halving):
    """`Halving`; a trial that pauses asks for a GPU if its score is below 0.3, else for a CPU."""

    grows: bool = True

    def judge(self, report, view):
        decision = super().judge(report, view)
        if decision.action is not Action.PAUSE:
            return decision
        return replace(decision, resources={"gpus": 1} if report.score < 0.3 else {"cpus": 1})


@dataclass(frozen=True)
class Broken(Cup):
    """
    A scheduler that fails until the file `gate-corrected` is in `folder`.

    The method that the field `where` names fails: it calls the method that the field `how` names.
    """

    how: str = ""
    where: str = "judge"

    def judge(self, report, view):
        return self.broken(view) if self.fails("judge") else super().judge(report, view)

    def next_work(self, view):
        return self.broken(view) if self.fails("next_work") else super().next_work(view)

    def fails(self, method):
        corrected = self.folder and (Path(self.folder) / "gate-corrected").exists()
        return method == self.where and not corrected

    def broken(self, view):
        return getattr(self, self.how)(view)

    def raises(self, _view):
        raise KeyError("accuracy")

    def sleeps(self, _view):
        time.sleep(2.0)

    def kills_itself(self, _view):
        os.kill(os.getpid(), signal.SIGKILL)

    def returns_none(self, _view):
        return None

    def other_rung(self, _view):
        return Decision(entry=Entry(RungKey(0, 7), 0.5))

    def pauses_without_entry(self, _view):
        return Decision(Action.PAUSE)

    def exploits(self, _view):
        return Decision(Action.EXPLOIT)

    def records_nan(self, view):
        return Decision(entry=Entry(view.key, math.nan))

    def keeps_a_negative_number(self, view):
        return Close(view.rungs()[0], -1)

    def closes_an_unknown_rung(self, _view):
        return Close(RungKey(0, 7), 1)

    def resumes_an_unknown_trial(self, view):
        waiting = next(filter(None, map(view.best_waiting, view.rungs())))
        return waiting._replace(trial_id=10**9)


class WithoutJudge:
    def __init__(self, **_options):
        pass


@dataclass(frozen=True)
class Raising(studydb.CustomScheduler):
    """Raises an error when it is made."""

    def __post_init__(self):
        raise ValueError("no such file")


def curve(config, trial):
    """Report `x + 1 / step` and a checkpoint at each of 12 steps; list the steps in `trained`."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 12:
        step += 1
        if config.get("folder"):
            with (Path(config["folder"]) / "trained").open("a") as file:
                file.write(f"{trial.number} {step}\n")
        trial.report({"loss": config["x"] + 1 / step}, checkpoint={"step": step})
        time.sleep(config.get("pause_s", 0.0))
