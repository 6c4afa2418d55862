"""
Population based training, short but complete; with it, tests check the interface of schedulers.

The package does not have this scheduler yet. Source: Jaderberg et al., "Population Based Training"
(2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studydb.domain.life.decisions import CONTINUE, Action, Decision, Entry, Exploit, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Ranked, Report, StudyView
from studydb.domain.seeds import unit_number
from studydb.schedulers.base import BaseScheduler


@dataclass(frozen=True)
class PBT(BaseScheduler):
    """
    Asynchronous PBT: each of a generation's worst trials goes on from a random one of the best.

    Generation N is the rung at step N * `interval`; its entries are the trials that reached it. The
    worse trial takes the better trial's checkpoint and config; all values of the config are
    multiplied by 0.8, or all by 1.2. A trial continues unchanged if fewer than `fewest` trials have
    reached the generation, or if none of the best has a checkpoint. A trial that reaches the last
    generation completes.
    """

    interval: int
    generations: int
    quantile: float = 0.25
    fewest: int = 4
    reads_best = 1000

    def next_decision_step(self, bracket: int, step: int) -> int | None:  # noqa: ARG002
        generation = step // self.interval + 1
        return generation * self.interval if generation <= self.generations else None

    def locks(self, bracket: int, step: int) -> Sequence[RungKey]:
        generation = step // self.interval
        return (RungKey(bracket, generation * self.interval),) if generation else ()

    def judge(self, report: Report, view: StudyView) -> Decision:
        (key,) = self.locks(report.bracket, report.step)
        if key.step >= self.generations * self.interval:
            return Decision(Action.STOP, Reason.COMPLETED, Entry(key, report.score))
        if view.rung(key).entered:
            return CONTINUE
        entry, others = Entry(key, report.score), view.best(key, self.reads_best)
        n_best = math.ceil((len(others) + 1) * self.quantile)
        is_worst = sum(one.score > report.score for one in others) < n_best
        donors = [one for one in others[:n_best] if one.checkpoint_id is not None]
        if not is_worst or not donors or len(others) + 1 < self.fewest:
            return Decision(entry=entry)
        donor = donors[int(unit_number(report.seed, "donor", key.step) * len(donors))]
        exploit = self._exploit(donor, report.seed, key.step)
        return Decision(Action.EXPLOIT, Reason.EXPLOITED, entry, exploit=exploit)

    def _exploit(self, donor: Ranked, seed: int, step: int) -> Exploit:
        assert donor.checkpoint_id is not None
        factor = 1.2 if unit_number(seed, "factor", step) < 0.5 else 0.8
        config = {name: value * factor for name, value in (donor.config or {}).items()}
        return Exploit(donor.trial_id, donor.checkpoint_id, config)
