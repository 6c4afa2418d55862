"""A search on recorded curves by real worker processes, some of which are killed."""

import json
import os
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fleet.workers import Fleet, eventually

import studydb
from benchmarks import places, replayed
from benchmarks.found import Found
from benchmarks.space import STUDY
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.states import Reason, State
from studydb.domain.records import TrialRow
from studydb.domain.scheduling import Scheduler
from studydb.operations.reads import list_trials
from studydb.operations.reported import count_reports

SCRIPTS = Path(__file__).parents[1]

EPOCH_S = 0.02
TIMEOUT_S = 300.0

DECIDED = (Reason.EARLY_STOPPED, Reason.GIVEN_UP, Reason.COMPLETED)
"""The reasons of trials that their scheduler has ended, or that have trained all their epochs."""


def search(
    curves: Sequence[Sequence[float]],
    scheduler: Scheduler,
    *,
    workers: int,
    epochs: int,
    seed: int,
    kills: int,
) -> Found:
    """
    Run a study to its end with worker processes on SQLite, and kill some of them by SIGKILL.

    A worker is killed when a random number of epochs has been trained; then another worker is
    started. Each trial writes its trained epochs to a log. `n_after_decision` is the number of
    epochs that were trained after the decision to end or pause their trial. Epochs with a stored
    result are counted in the study's rows, and the other epochs in the log.

    Args:
        curves: The errors of each trial after each epoch; the index is the number of the trial.
        epochs: The study's `max_steps`.
        kills: How many workers are killed. Fewer are killed if the study ends early or has too few
            epochs.
    """
    rng = random.Random(f"kills {seed}")
    times = range(workers, epochs - workers)
    kills_at = sorted(rng.sample(times, min(kills, len(times))))
    with places.folder() as folder:
        os.environ["STUDYDB_KEY_FILE"] = str(folder / "key")
        log = folder / "trained"
        log.touch()
        storage = f"sqlite:///{folder / 'study.db'}"
        study = _create(storage, folder, curves, scheduler, epochs=epochs)
        with closing(study), Fleet(storage, STUDY, folder) as fleet:
            for _ in range(workers):
                fleet.start()
            n_kills = sum(_kill(fleet, log, epochs=at, rng=rng) for at in kills_at)
            eventually(
                lambda: not fleet.running,
                TIMEOUT_S,
                what=f"{fleet.output()}\nThe end of all workers",
            )
            return _searched(study, log, n_kills)


def _create(
    storage: str,
    folder: Path,
    curves: Sequence[Sequence[float]],
    scheduler: Scheduler,
    *,
    epochs: int,
) -> studydb.Study:
    (folder / "curves.json").write_text(json.dumps(curves), encoding="utf-8")
    return studydb.create_study(
        STUDY,
        f"{replayed.__name__}:{replayed.train.__name__}",
        space={
            "curves": str(folder / "curves.json"),
            "log": str(folder / "trained"),
            "epoch_s": EPOCH_S,
        },
        metric="error",
        mode="min",
        num_trials=len(curves),
        max_steps=epochs,
        scheduler=scheduler,
        workdir=SCRIPTS,
        storage=storage,
    )


def _n_trained(log: Path) -> int:
    return log.stat().st_size // len(replayed.LINE.format(number=0, step=0))


def _kill(fleet: Fleet, log: Path, *, epochs: int, rng: random.Random) -> bool:
    """Kill a worker when `epochs` are trained, start another; return False if no worker runs."""
    eventually(
        lambda: _n_trained(log) >= epochs or not fleet.running,
        TIMEOUT_S,
        what=f"{fleet.output()}\nEpoch {epochs}",
    )
    running = fleet.running
    if not running:
        return False
    rng.choice(running).kill()
    fleet.start()
    return True


def _searched(study: studydb.Study, log: Path, n_kills: int) -> Found:
    trials = list_trials(study.database, study.record)
    trained = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    complete = [row.value for row in trials if row.reason is Reason.COMPLETED]
    stored = count_reports(study.database, study.record)
    return Found(
        best=min(value for value in complete if value is not None),
        n_trials=len(trials),
        n_complete=len(complete),
        n_epochs=len(trained),
        n_after_decision=stored.n_after_decision + _n_after_end(trials, trained),
        n_kills=n_kills,
    )


def _n_after_end(trials: Sequence[TrialRow], trained: Sequence[tuple[int, ...]]) -> int:
    """
    Count the epochs that trials trained after their last stored epoch.

    Only trials count that have completed, or that the scheduler has ended or paused.
    """
    last = {row.number: row.summary.last_step or 0 for row in trials if _is_decided(row)}
    return sum(step > last[number] for number, step in trained if number in last)


def _is_decided(row: TrialRow) -> bool:
    if row.state is State.PAUSED:
        return row.paused_by == DecidedBy.SCHEDULER
    return row.reason in DECIDED
