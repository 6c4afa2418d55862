"""Syne Tune runs the task on its local backend: a process per trial, polled every 0.1 s."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.contenders import syne_tune_train
from benchmarks.contenders.task import METRIC, SPACE, read_task, say, timed

POLLING_S = 0.1
"""With the default of 5 s, most trials run past the step at which they should stop."""


def scheduler_of(task: dict[str, Any]) -> Any:
    """Make a scheduler that tries the given configurations, with ASHA if the task says so."""
    from syne_tune.config_space import lograndint, loguniform, uniform  # noqa: PLC0415  after main has set SYNETUNE_FOLDER
    from syne_tune.optimizer.baselines import RandomSearch  # noqa: PLC0415
    from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving  # noqa: PLC0415

    kinds = {"loguniform": loguniform, "lograndint": lograndint, "uniform": uniform}
    space = {name: kinds[kind](low, high) for name, (kind, low, high) in SPACE.items()}
    space["epochs"] = task["epochs"]
    if not task["scheduler"]:
        return RandomSearch(space, metrics=[METRIC], points_to_evaluate=task["configs"])
    return AsynchronousSuccessiveHalving(
        space,
        metric=METRIC,
        time_attr="epoch",
        max_t=task["epochs"],
        grace_period=1,
        reduction_factor=3,
        searcher_kwargs={"points_to_evaluate": task["configs"]},
    )


def main() -> None:
    task = read_task(sys.argv[1])
    # `import syne_tune` reads this variable.
    os.environ["SYNETUNE_FOLDER"] = str(Path(task["folder"]) / "syne-tune")
    from syne_tune import StoppingCriterion, Tuner  # noqa: PLC0415
    from syne_tune.backend import LocalBackend  # noqa: PLC0415
    from syne_tune.experiments import load_experiment  # noqa: PLC0415

    logging.getLogger().setLevel(logging.ERROR)
    tuner = Tuner(
        trial_backend=LocalBackend(entry_point=str(Path(syne_tune_train.__file__))),
        scheduler=scheduler_of(task),
        stop_criterion=StoppingCriterion(max_num_trials_finished=len(task["configs"])),
        n_workers=task["workers"],
        sleep_time=POLLING_S,
        tuner_name="real",
    )
    times: dict[str, float] = {}
    with timed(times, "run"):
        tuner.run()
    results = load_experiment(tuner.name).results
    epochs = results.groupby("trial_id")["epoch"].max()
    best = float(results[METRIC].min())
    say(times, trials=len(epochs), epochs=int(epochs.sum()), best=best)


if __name__ == "__main__":
    main()
