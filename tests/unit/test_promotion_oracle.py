"""ASHA by promotion chooses the trials that Syne Tune 0.13 chose for the same random reports."""

import json
from bisect import insort
from pathlib import Path

import pytest

from studydb.domain.life.decisions import Action, RungKey
from studydb.domain.quantile import Cut, exact_cutoff, insert
from studydb.domain.scheduling import Idle, Report, RungView, WaitingTrial
from studydb.schedulers import ASHA

CASES = json.loads((Path(__file__).parents[1] / "data" / "syne_tune_promotion.json").read_text())


class Rung:
    """A rung in memory; the functions of `domain/quantile.py` compute its cut and cutoff."""

    def __init__(self, quantile):
        self.quantile, self.cut, self.ranked, self.waiting = quantile, Cut(), [], []

    def enter(self, trial, score):
        entry = (score, trial)
        place = None if self.cut.entry is None else self.ranked.index(self.cut.entry)
        worse = (
            self.ranked[place + 1] if place is not None and place + 1 < len(self.ranked) else None
        )
        better = self.ranked[place - 1] if place else None
        self.cut = insert(self.cut, entry, worse=worse, better=better, quantile=self.quantile)
        self.waiting.append((score, len(self.ranked), trial))
        insort(self.ranked, entry)

    def view(self):
        place = None if self.cut.entry is None else self.ranked.index(self.cut.entry)
        better = self.ranked[place - 1] if place else None
        return RungView(self.cut.n, exact_cutoff(self.cut, better and better[0], self.quantile))


class Study:
    """What a scheduler reads of a study: its rungs, and the best trial that waits at each rung."""

    def __init__(self, scheduler):
        self.rungs = {spec.key: Rung(spec.quantile) for spec in scheduler.rungs()}

    def rung(self, key):
        return self.rungs[key].view()

    def best_waiting(self, key):
        if not self.rungs[key].waiting:
            return None
        score, _, trial = min(self.rungs[key].waiting)
        return WaitingTrial(key, trial, score)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_free_worker_gets_the_trial_that_syne_tune_chose(case):
    scheduler = ASHA(**case["options"], type="promotion", end_game=0)
    study, n_trials, sign = Study(scheduler), 0, 1 if case["mode"] == "min" else -1

    for trial, *reported in case["events"]:
        if not reported:
            chosen = scheduler.next_work(study)
            assert trial == (n_trials if chosen is Idle.START_NEW else chosen.trial_id)
            if chosen is Idle.START_NEW:
                n_trials += 1
            else:
                waiting = study.rungs[chosen.rung].waiting
                waiting[:] = [one for one in waiting if one[2] != trial]
            continue
        milestone, value = reported
        decision = scheduler.judge(Report(milestone, sign * value, is_nan=False, bracket=0), study)
        if milestone == scheduler.max_t:
            assert decision.action is Action.STOP
        else:
            assert (decision.action, decision.entry.rung) == (Action.PAUSE, RungKey(0, milestone))
            study.rungs[decision.entry.rung].enter(trial, decision.entry.score)
