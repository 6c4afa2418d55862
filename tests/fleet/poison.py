"""Studies in which some trials do something harmful (a poison); the other trials must complete."""

import time
from collections.abc import Mapping
from pathlib import Path

import studydb
from fleet.trainables.poisoned import POISONS
from fleet.workers import TRAINABLES, Fleet, eventually
from studydb.domain.errors import NotAllowed

ALL = tuple(POISONS)
PATIENCE_S = 240.0
DELETE_S = 60.0


def create(storage: str, poisons: Mapping[int, str], n_trials: int) -> studydb.Study:
    """Create a study without retries; `poisons` maps trial numbers to poisons (keys of POISONS)."""
    named = {str(number): poison for number, poison in poisons.items()}
    return studydb.create_study(
        "poisoned",
        "poisoned:train",
        workdir=TRAINABLES,
        space={"x": studydb.uniform(0.0, 1.0), "poisons": studydb.constant(named)},
        metric="loss",
        mode="min",
        num_trials=n_trials,
        max_losses=0,
        storage=storage,
    )


def run(
    storage: str,
    directory: Path,
    poisons: Mapping[int, str],
    *,
    n_trials: int,
    workers: int,
    delete_early: bool = False,
    preloaded: bool = False,
) -> list[str]:
    """
    Create a study with poisons, let workers run it, and delete it; return the violations.

    Args:
        delete_early: Delete the study as soon as a trial is TERMINATED.
        preloaded: Fork the workers from a process that has imported studydb.
    """
    study = create(storage, poisons, n_trials)
    with Fleet(storage, study.name, directory, preloaded=preloaded, lease=5.0) as fleet:
        for _ in range(workers):
            fleet.start()
        if delete_early:
            eventually(lambda: any(one.state == "TERMINATED" for one in study.trials))
            wrong = _delete(storage, study.name)
            study.close()
            return wrong
        codes = fleet.exit_codes(PATIENCE_S)
        wrong = [f"exit code {code}: {fleet.output()}" for code in codes if code]
    wrong += _faults(study, poisons, n_trials)
    study.close()
    return wrong + _delete(storage, study.name)


def _faults(study: studydb.Study, poisons: Mapping[int, str], n_trials: int) -> list[str]:
    trials = list(study.trials)
    wrong = [] if len(trials) == n_trials else [f"{len(trials)} trials"]
    for trial in trials:
        allowed = {"TERMINATED", "ERROR"} if trial.number in poisons else {"TERMINATED"}
        if trial.state not in allowed:
            wrong.append(f"trial {trial.number} ({poisons.get(trial.number)}): {trial.state}")
    return wrong


def _delete(storage: str, name: str) -> list[str]:
    until_s = time.monotonic() + DELETE_S
    while True:
        try:
            studydb.delete_study(name, storage=storage)
        except NotAllowed as error:
            if time.monotonic() > until_s:
                return [f"delete: {error}"]
            time.sleep(0.5)
        else:
            return []
