"""Optuna runs the task: one process per worker on one storage, with enqueued trials."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from benchmarks.contenders.task import SPACE, epochs_of, read_task, say, timed

NAME = "real"


def storage_of(task: dict[str, Any]) -> Any:
    return JournalStorage(JournalFileBackend(str(Path(task["folder"]) / "journal.log")))


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, (kind, low, high) in SPACE.items():
        if kind == "lograndint":
            config[name] = trial.suggest_int(name, int(low), int(high), log=True)
        else:
            config[name] = trial.suggest_float(name, low, high, log=kind == "loguniform")
    return config


def work(task: dict[str, Any]) -> None:
    """Run trials in one process until no enqueued trial is left."""
    import studydb.examples.digits  # noqa: F401, PLC0415  imports scikit-learn, as a user's script

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: Any = optuna.pruners.NopPruner()
    if task["scheduler"]:
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.load_study(study_name=NAME, storage=storage_of(task), pruner=pruner)
    wanted = len(task["configs"])

    def objective(trial: optuna.Trial) -> float:
        error = 1.0
        for epoch, error in epochs_of(suggest(trial), task["epochs"]):
            trial.report(error, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return error

    def stop(study: optuna.Study, _trial: Any) -> None:
        if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.stop()

    study.optimize(objective, n_trials=wanted, callbacks=[stop])


def main() -> None:
    task = read_task(sys.argv[1])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name=NAME, storage=storage_of(task), direction="minimize")
    for config in task["configs"]:
        study.enqueue_trial(config)
    times: dict[str, float] = {}
    context = multiprocessing.get_context("spawn")
    with timed(times, "run"):
        team = [context.Process(target=work, args=(task,)) for _ in range(task["workers"])]
        for process in team:
            process.start()
        for process in team:
            process.join()
    ended = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    say(
        times,
        trials=len(ended),
        epochs=sum(len(trial.intermediate_values) for trial in ended),
        best=min(min(trial.intermediate_values.values()) for trial in ended),
    )


if __name__ == "__main__":
    main()
