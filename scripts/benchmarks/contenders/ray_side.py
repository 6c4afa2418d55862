"""Ray Tune runs the task in reused actors with one CPU each. Ray's start-up is timed separately."""

import os
import sys
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import tune

from benchmarks.contenders.task import METRIC, epochs_of, read_task, say, timed


class Digits(tune.Trainable):  # type: ignore[misc]
    """A trial in an actor; the actor is reused for the next configuration."""

    def setup(self, config: dict[str, Any]) -> None:
        import studydb.examples.digits  # noqa: F401, PLC0415  in the actor's process

        self.begin(config)

    def begin(self, config: dict[str, Any]) -> None:
        self.epochs = epochs_of(config["config"], config["epochs"])
        self.left = config["epochs"]

    def step(self) -> dict[str, Any]:
        _, error = next(self.epochs)
        self.left -= 1
        return {METRIC: error, "done": self.left == 0}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.begin(new_config)
        return True

    def save_checkpoint(self, _folder: str) -> None:
        return None

    def load_checkpoint(self, _folder: Any) -> None:
        return None


def main() -> None:
    task = read_task(sys.argv[1])
    times: dict[str, float] = {}
    with timed(times, "start-up"):
        ray.init(num_cpus=task["workers"], include_dashboard=False, log_to_driver=False)
    scheduler = None
    if task["scheduler"]:
        scheduler = tune.schedulers.ASHAScheduler(
            max_t=task["epochs"], grace_period=1, reduction_factor=3
        )
    tuner = tune.Tuner(
        tune.with_resources(Digits, {"cpu": 1}),
        param_space={"config": tune.grid_search(task["configs"]), "epochs": task["epochs"]},
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="min",
            scheduler=scheduler,
            reuse_actors=True,
            max_concurrent_trials=task["workers"],
        ),
        run_config=tune.RunConfig(
            storage_path=task["folder"],
            name="real",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    with timed(times, "run"):
        results = tuner.fit()
    rows = [result.metrics for result in results]
    say(
        times,
        trials=len(rows),
        epochs=sum(row["training_iteration"] for row in rows),
        best=min(row[METRIC] for row in rows),
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
