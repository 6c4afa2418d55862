"""A study into which faults are injected, and the checks of what must hold afterwards."""

import sys
from dataclasses import dataclass
from pathlib import Path

import studydb
from fleet import invariants
from fleet.fault_injector import RECOVERY_S, FaultPlan, FaultReport
from fleet.trainables import chaotic_curve
from fleet.workers import TRAINABLES

GRACE_PERIOD, REDUCTION_FACTOR = 2, 3

WEIGHTS_BYTES = 18 << 20
"""
The size of the weights that every fourth trial saves if the store is remote; commands save none. A
checkpoint with weights is sent in three parts.
"""

KINDS: dict[str, str | studydb.Command] = {
    "function": "chaotic:train",
    "class": "chaotic:Chaotic",
    "command": studydb.Command(["sh", "chaotic.sh", sys.executable]),
}
"""The trainable of each kind. The command is a shell, whose child is the program that trains."""


@dataclass(frozen=True)
class ChaosRun:
    """
    A study that must end and keep all promises although faults are injected.

    Attributes:
        scheduler: "FIFO" or "ASHA".
        kind: A key of `KINDS`.
        checkpoints: The URL of the store of checkpoints; None for the default store.
        keep: The study's setting `keep`, as a person types the setting; None for "last=1".
        journal: The directory in which each attempt records its acknowledged steps.
    """

    scheduler: str
    trials: int
    steps: int
    step_s: float
    seed: int
    journal: Path
    lease_s: float = 5.0
    kind: str = "function"
    checkpoints: str | None = None
    keep: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether checkpoints are sent to a remote store while the training goes on."""
        return (self.checkpoints or "").startswith("s3:")

    def create(self, storage: str) -> studydb.Study:
        asha = studydb.ASHA(
            max_t=self.steps, grace_period=GRACE_PERIOD, reduction_factor=REDUCTION_FACTOR
        )
        return studydb.create_study(
            f"chaos-{self.seed}",
            KINDS[self.kind],
            workdir=TRAINABLES,
            space={
                "x": studydb.uniform(0.0, 1.0),
                "steps": self.steps,
                "step_s": self.step_s,
                "journal": str(self.journal),
                "save_waits": not self.is_remote,
                "weights_bytes": WEIGHTS_BYTES if self.is_remote else 0,
            },
            metric="loss",
            mode="min",
            num_trials=self.trials,
            # If `max_losses` were not set, three deaths in a row at one step would end a trial.
            max_losses=30 if self.is_remote else 10,
            checkpoints=self.checkpoints,
            keep=self.keep or "last=1",
            scheduler=asha if self.scheduler == "ASHA" else studydb.FIFO(),
            searcher=studydb.RandomSearch(seed=self.seed),
            storage=storage,
        )

    def judge(
        self, study: studydb.Study, report: FaultReport, plan: FaultPlan
    ) -> dict[str, list[str]]:
        """Return a list of violations for each promise."""
        tables = invariants.read_rows(study)
        verdicts = {
            "study FINISHED": [] if study.status == "FINISHED" else [f"it is {study.status}"],
            "as many kills, crashes, freezes, partitions and store outages as planned": (
                report.shortfall(plan)
            ),
            f"finished within a lease and {RECOVERY_S:g} s after the last fault": (
                [f"after {report.recovery_s:.0f} s"]
                if report.recovery_s > self.lease_s + RECOVERY_S
                else []
            ),
            "every trial TERMINATED": invariants.all_ended(tables),
            "exactly the trials that were asked for": invariants.numbered(
                tables, self.trials + report.extended
            ),
            "each trial has one live value at each step up to its last step: the value of the curve": (
                invariants.live_rows_complete(
                    tables, lambda params, step: chaotic_curve.loss(params["x"], step)
                )
            ),
            "every trial that was not stopped trained to its end": invariants.reached_the_end(
                tables, self.steps
            ),
            "every acknowledged result is stored": invariants.acknowledged_kept(
                tables, self.journal
            ),
            "the summary of each trial equals that of its live rows": invariants.summaries_true(
                tables, study.record.objective.mode
            ),
            "no trial found its checkpoint gone or damaged": invariants.damaged(study),
            "counters equal count(*)": invariants.counters_true(tables),
            "some trials resumed": invariants.some_resumed(tables),
            "every worker that was not killed exited with 0": report.unexpected_exits,
            f"no process outlived the process above it by {report.settle_s:g} s": (
                report.departures.survivors
            ),
            "disconnected workers wrote nothing to lost attempts, and claimed again": (
                report.zombie_writes
            ),
        }
        if self.scheduler == "ASHA":
            verdicts |= {
                "ASHA decided as the reference does": invariants.decided_as_reference(
                    tables, study.record.objective.mode, REDUCTION_FACTOR
                ),
                "decisions were obeyed": invariants.decisions_obeyed(tables),
            }
        return verdicts

    def figures(self, study: studydb.Study) -> str:
        """Return the numbers of trials, attempts, resumptions, results and acknowledgements."""
        tables = invariants.read_rows(study)
        attempts = sum(map(len, tables.attempts.values()))
        return (
            f"{len(tables.trials)} trials, {attempts} attempts, {invariants.resumptions(tables)} "
            f"resumed, {len(tables.stored)} results, {sum(map(len, tables.live.values()))} live, "
            f"{invariants.acknowledgements(self.journal)} acknowledgements"
        )
