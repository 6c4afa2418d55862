"""A study in which several workers run trials that were enqueued; each trial must run once."""

from collections import Counter

import sqlalchemy as sa

import studydb
from fleet.workers import TRAINABLES
from studydb.db.schema import attempt, trial


def create(storage: str, n_trials: int) -> studydb.Study:
    """Create a study and enqueue all trials of its budget."""
    study = studydb.create_study(
        "drain",
        "obedient:one_step",
        workdir=TRAINABLES,
        space={"x": studydb.uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        num_trials=n_trials,
        storage=storage,
    )
    for number in range(n_trials):
        study.enqueue({"x": number / n_trials})
    return study


def faults(study: studydb.Study, n_trials: int) -> list[str]:
    """
    Return the faults.

    A fault is a wrong trial number, or a trial that did not complete with loss x in one attempt.
    """
    of_study = trial.c.study_id == study.record.id
    with study.database.begin(write=False) as txn:
        trials = txn.all(sa.select(trial).where(of_study))
        attempts = txn.all(sa.select(attempt).where(attempt.c.study_id == study.record.id))
    runs = Counter(row.trial_id for row in attempts)
    numbers = sorted(row.number for row in trials)
    wrong = [] if numbers == list(range(n_trials)) else [f"the numbers are {numbers}"]
    return wrong + [
        f"trial {row.number}: {row.state}, {row.reason}, {runs[row.id]} runs, value {row.last_value}"
        for row in trials
        if (row.state, row.reason, row.attempt, runs[row.id], row.last_value)
        != ("TERMINATED", "COMPLETED", 1, 1, row.params["x"])
    ]
