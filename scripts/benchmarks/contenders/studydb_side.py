"""studydb runs the task: the trials are enqueued, then `study.run` is timed."""

import sys
from pathlib import Path

import studydb
from benchmarks.contenders.task import METRIC, read_task, say, timed


def main() -> None:
    task = read_task(sys.argv[1])
    scheduler = None
    if task["scheduler"]:
        scheduler = studydb.ASHA(max_t=task["epochs"], grace_period=1, reduction_factor=3)
    study = studydb.create_study(
        "real",
        f"benchmarks.contenders.{task['module']}:train",
        space={
            "lr": studydb.loguniform(1e-4, 1.0),
            "h": studydb.lograndint(4, 256),
            "alpha": studydb.loguniform(1e-6, 1.0),
            "bs": studydb.lograndint(8, 256),
            "mom": studydb.uniform(0, 0.99),
            "epochs": task["epochs"],
        },
        metric=METRIC,
        mode="min",
        num_trials=len(task["configs"]),
        scheduler=scheduler,
        storage=task["storage"] or f"sqlite:///{Path(task['folder']) / 'real.db'}",
    )
    for config in task["configs"]:
        study.enqueue(config)
    times: dict[str, float] = {}
    with timed(times, "run"):
        study.run(workers=task["workers"])
    trials = study.trials
    say(
        times,
        trials=len(trials),
        epochs=sum(trial.summary.last_step or 0 for trial in trials),
        best=study.best_value,
    )


if __name__ == "__main__":
    main()
