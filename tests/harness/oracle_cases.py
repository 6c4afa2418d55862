"""
Random sequences of reports, with the decisions of Ray Tune's and Syne Tune's schedulers on them.

Each function of CASES makes one case from a source of random numbers. A case is plain JSON: the
options of the scheduler, the mode, and the events, in order. `harness.oracle_replay` lets
studydb's scheduler decide on the same reports. This module needs ray[tune] and syne-tune; the rest
of the suite does not.

On purpose, studydb's rules differ from the other systems' in three points, which the cases avoid:

- In studydb, NaN ends a trial of ASHA and of HyperBand. In the cases of ASHA the other system does
  not get a NaN at a rung; in those of HyperBand it is told that the trial has failed.
- A trial that skips a rung is judged differently. In the cases no trial skips a rung.
- Of trials with equal values, studydb's HyperBand keeps the first that reported, and Ray Tune the
  last that was added. In cases with equal values, the trials of a bracket report in the reverse of
  the order in which they were added.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    TrialScheduler,
)
from syne_tune.backend.trial_status import Trial as SyneTuneTrial
from syne_tune.config_space import uniform
from syne_tune.optimizer.scheduler import SchedulerDecision
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

Case = dict[str, Any]

TIES = [k / 8 for k in range(-6, 7)]
ODD = [math.nan, math.inf, -math.inf]


@dataclass(eq=False)
class FakeTrial:
    """What Ray Tune's schedulers read of a trial."""

    trial_id: str
    status: str = Trial.RUNNING
    is_saving: bool = False
    step: int = 0
    values: list[float] = field(default_factory=list)


def _value(rng: Random, *, ties: bool) -> float:
    if rng.random() < 0.06:
        return rng.choice(ODD)
    return rng.choice(TIES) if ties else round(rng.uniform(-1, 1), 6)


def _asha_options(rng: Random) -> Case:
    reduction_factor, grace_period = rng.choice([2, 3, 4, 1.5]), rng.choice([1, 2])
    max_t = rng.randint(grace_period, 13)
    most = int(math.log(max_t / grace_period) / math.log(reduction_factor) + 1)
    options = {"max_t": max_t, "grace_period": grace_period, "reduction_factor": reduction_factor}
    return options | {"brackets": rng.randint(1, max(1, min(3, most)))}


def _asha(rng: Random, decide: Any, options: Case, mode: str) -> Case:
    """Let trials, chosen at random, report their next steps until each trial has ended."""
    ties, n_trials, events = rng.random() < 0.5, rng.randint(2, 25), []
    live = dict.fromkeys(range(n_trials), 0)
    brackets = [rng.randrange(options["brackets"]) for _ in live]
    while live:
        number = rng.choice(sorted(live))
        live[number] += 1
        step, value = live[number], _value(rng, ties=ties)
        stops = True  # NaN at a rung stops the trial; the other system is not told
        if not (math.isnan(value) and _is_milestone(step, brackets[number], options)):
            stops = decide(number, brackets[number], step, value)
        events.append([number, step, value, stops])
        if stops:
            del live[number]
    return {"options": options, "mode": mode, "brackets": brackets, "events": events}


def _is_milestone(step: int, bracket: int, options: Case) -> bool:
    factor, grace = options["reduction_factor"], options["grace_period"]
    rungs = (math.ceil(grace * factor**k) for k in range(bracket, 12))
    return step in rungs and step < options["max_t"]


def ray_asha(rng: Random) -> Case:
    """Ask Ray Tune's `AsyncHyperBandScheduler` whether trials stop."""
    options, mode = _asha_options(rng), rng.choice(["min", "max"])
    oracle = AsyncHyperBandScheduler("step", "loss", mode, **options)

    def decide(number: int, bracket: int, step: int, value: float) -> bool:
        oracle._trial_info[str(number)] = oracle._brackets[bracket]
        with np.errstate(all="ignore"):
            answer = oracle.on_trial_result(
                None, FakeTrial(str(number)), {"step": step, "loss": value}
            )
        return answer == TrialScheduler.STOP

    return _asha(rng, decide, options, mode)


def syne_tune_asha(rng: Random) -> Case:
    """Ask Syne Tune's `AsynchronousSuccessiveHalving` whether trials stop."""
    options, mode = _asha_options(rng), rng.choice(["min", "max"])
    oracle = AsynchronousSuccessiveHalving(
        {"lr": uniform(0, 1)},
        metric="loss",
        do_minimize=mode == "min",
        time_attr="step",
        random_seed=0,
        **options,
    )

    def decide(number: int, bracket: int, step: int, value: float) -> bool:
        oracle.trial_info[number] = oracle.brackets[bracket]
        trial = SyneTuneTrial(number, {"lr": 0.5}, datetime(2026, 1, 1))  # noqa: DTZ001
        answer = oracle.on_trial_result(trial, {"step": step, "loss": value})
        return answer == SchedulerDecision.STOP

    return _asha(rng, decide, options, mode)


def ray_median(rng: Random) -> Case:
    """
    Ask Ray Tune's `MedianStoppingRule` whether trials stop.

    A trial reports nothing after a NaN, because Ray Tune's best value of a trial with a NaN depends
    on the order of the trial's values.
    """
    mode, hard_stop = rng.choice(["min", "max"]), rng.random() < 0.5
    options = {"grace_period": rng.choice([1, 1, 2, 3]), "min_samples": rng.randint(1, 4)}
    oracle = MedianStoppingRule(
        *("step", "loss", mode),
        grace_period=options["grace_period"],
        min_samples_required=options["min_samples"],
        hard_stop=hard_stop,
    )
    controller = SimpleNamespace(get_live_trials=list)
    live = {n: FakeTrial(str(n)) for n in range(rng.randint(2, 14))}
    longest, events = rng.randint(2, 7), []
    while live:
        number = rng.choice(sorted(live))
        trial = live[number]
        trial.step += 1
        value = rng.choice(ODD) if rng.random() < 0.04 else rng.choice(TIES)
        with np.errstate(all="ignore"):
            answer = oracle.on_trial_result(controller, trial, {"step": trial.step, "loss": value})
        decided = None if math.isnan(value) else answer != TrialScheduler.CONTINUE
        events.append([number, trial.step, value, decided])
        if decided is not False or trial.step == longest:
            del live[number]
    return {"options": options | {"hard_stop": hard_stop}, "mode": mode, "events": events}


class _Band:
    """A band of Ray Tune's `HyperBandScheduler`; all trials are added before the first report."""

    def __init__(self, options: Case, mode: str) -> None:
        max_t, factor = options["max_t"], options["reduction_factor"]
        self.oracle = HyperBandScheduler("step", "loss", mode, max_t, factor)
        self.trials: list[FakeTrial] = []
        self.kept: dict[tuple[int, int], list[int]] = {}
        halvings = [s for s in range(self.oracle._s_max_1) if self.oracle._get_r0(s) > 0]
        self.rungs: dict[Any, int] = {}
        for s in halvings:
            for _ in range(self.oracle._get_n0(s)):
                trial = FakeTrial(str(len(self.trials)))
                self.trials.append(trial)
                self.oracle.on_trial_add(self, trial)
                self.rungs[self.bracket(trial)] = s

    def bracket(self, trial: FakeTrial) -> Any:
        return self.oracle._trial_info[trial][0]

    def stop_trial(self, trial: FakeTrial) -> None:
        trial.status = Trial.TERMINATED
        self.oracle.on_trial_remove(self, trial)

    def report(self, trial: FakeTrial, value: float) -> None:
        bracket = self.bracket(trial)
        trial.step, halves = bracket._cumul_r, bracket._halves
        answer = self.oracle.on_trial_result(self, trial, {"step": trial.step, "loss": value})
        trial.status = {
            TrialScheduler.CONTINUE: Trial.RUNNING,
            TrialScheduler.PAUSE: Trial.PAUSED,
            TrialScheduler.STOP: Trial.TERMINATED,
        }[answer]
        self._note(bracket, halves, trial.step)

    def fail(self, trial: FakeTrial) -> None:
        bracket = self.bracket(trial)
        step, halves = bracket._cumul_r, bracket._halves
        trial.status = Trial.ERROR
        self.oracle.on_trial_error(self, trial)
        self._note(bracket, halves, step)

    def _note(self, bracket: Any, halves: int, step: int) -> None:
        """If the bracket has just been halved, record which trials go on, and let them run."""
        if bracket._halves == halves:
            return
        members = [one for one in self.trials if one in bracket._live_trials]
        kept = [one for one in members if one.status in (Trial.PAUSED, Trial.RUNNING)]
        self.kept[self.rungs[bracket], step] = [int(one.trial_id) for one in kept]
        for one in kept:
            one.status = Trial.RUNNING


def ray_hyperband(rng: Random) -> Case:
    """
    Ask Ray Tune's `HyperBandScheduler` which trials of a band go on at each rung.

    `kept` has the trials that go on, by the bracket's number of rungs and the step.

    Suppose that a bracket was already halved once, and now waits only for its last running trial.
    If this trial fails, Ray Tune does not halve the bracket again. Therefore the last running trial
    of a bracket never fails here.
    """
    factor = rng.choice([2, 3, 4])
    max_t = factor ** rng.choice([1, 2] if factor > 2 else [1, 2, 3])
    options, mode = {"max_t": max_t, "reduction_factor": factor}, rng.choice(["min", "max"])
    ties, band, events = rng.random() < 0.5, _Band(options, mode), []
    brackets = [band.rungs[band.bracket(one)] for one in band.trials]
    while running := [one for one in band.trials if one.status == Trial.RUNNING]:
        trial = rng.choice(running)
        beside = [one for one in running if band.bracket(one) is band.bracket(trial)]
        if ties:
            trial = beside[-1]
        if band.bracket(trial)._cumul_r >= max_t:
            trial.status = Trial.TERMINATED  # trained to its end
            continue
        value = rng.choice(TIES) if ties else round(rng.uniform(-1, 1), 9)
        if len(beside) > 1 and rng.random() < 0.1:
            value = rng.choice([math.nan, None])  # None: the trial fails
        events.append([int(trial.trial_id), band.bracket(trial)._cumul_r, value])
        if value is None or math.isnan(value):
            band.fail(trial)
        else:
            band.report(trial, value)
    kept = [[*key, trials] for key, trials in sorted(band.kept.items())]
    return {"options": options, "mode": mode, "brackets": brackets, "events": events, "kept": kept}


CASES = {
    "ray_asha": ray_asha,
    "ray_hyperband": ray_hyperband,
    "ray_median": ray_median,
    "syne_tune_asha": syne_tune_asha,
}
