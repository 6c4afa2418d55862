"""A study that is put through a storm, and the verdict on each thing that must hold afterwards."""

from dataclasses import dataclass
from pathlib import Path

import studydb
from fleet import invariants
from fleet.fault_injector import CALM_S, Damage, Weather
from fleet.trainables import chaotic
from fleet.workers import TRAINABLES

GRACE_PERIOD, REDUCTION_FACTOR = 2, 3


@dataclass(frozen=True)
class Ordeal:
    """
    What is to be trained.

    Attributes:
        scheduler: "FIFO" or "ASHA".
        journal: The directory in which children note what was acknowledged.
    """

    scheduler: str
    trials: int
    steps: int
    step_s: float
    seed: int
    journal: Path
    lease_s: float = 5.0

    def create(self, storage: str) -> studydb.Study:
        """Create its study."""
        asha = studydb.ASHA(
            max_t=self.steps, grace_period=GRACE_PERIOD, reduction_factor=REDUCTION_FACTOR
        )
        return studydb.create_study(
            f"ordeal-{self.seed}",
            "chaotic:train",
            workdir=TRAINABLES,
            space={
                "x": studydb.uniform(0.0, 1.0),
                "steps": self.steps,
                "step_s": self.step_s,
                "journal": str(self.journal),
            },
            metric="loss",
            mode="min",
            num_trials=self.trials,
            max_losses=10,  # asked for: kills at random may come thrice at the same step
            scheduler=asha if self.scheduler == "ASHA" else studydb.FIFO(),
            searcher=studydb.RandomSearch(seed=self.seed),
            storage=storage,
        )

    def judge(self, study: studydb.Study, damage: Damage, weather: Weather) -> dict[str, list[str]]:
        """What is wrong, by what must hold; empty lists are what one hopes for."""
        story = invariants.read_story(study)
        verdicts = {
            "study FINISHED": [] if study.status == "FINISHED" else [f"it is {study.status}"],
            "as many kills, crashes, freezes and partitions as planned": damage.shortfall(weather),
            f"finished within a lease and {CALM_S:g} s, once the faults had stopped": (
                [f"after {damage.calm_s:.0f} s"] * (damage.calm_s > self.lease_s + CALM_S)
            ),
            "every trial TERMINATED": invariants.all_ended(story),
            "exactly the trials that were asked for": invariants.numbered(
                story, self.trials + damage.extended
            ),
            "every live (trial, step) once, complete, right": invariants.live_rows_complete(
                story, lambda params, step: chaotic.loss(params["x"], step)
            ),
            "every trial that was not stopped trained to its end": invariants.reached_the_end(
                story, self.steps
            ),
            "every acknowledged result there": invariants.acknowledged_kept(story, self.journal),
            "summaries equal their rows": invariants.summaries_true(story, study.record.mode),
            "counters equal count(*)": invariants.counters_true(story),
            "some trials resumed": invariants.some_resumed(story),
            "no worker died of the database": damage.deserters,
            f"nothing of what was killed lived {damage.settle_s:g} s later": damage.survivors,
            "who was shut out changed nothing and worked on": damage.awakened,
        }
        if self.scheduler == "ASHA":
            verdicts |= {
                "ASHA decided as the reference does": invariants.decided_as_reference(
                    story, study.record.mode, REDUCTION_FACTOR
                ),
                "decisions were obeyed": invariants.decisions_obeyed(story),
            }
        return verdicts

    def figures(self, study: studydb.Study) -> str:
        """How much was at stake."""
        story = invariants.read_story(study)
        attempts = sum(map(len, story.attempts.values()))
        return (
            f"{len(story.trials)} trials, {attempts} attempts, {invariants.resumptions(story)} "
            f"resumed, {len(story.stored)} results, {sum(map(len, story.live.values()))} live, "
            f"{invariants.acknowledgements(self.journal)} acknowledgements"
        )
