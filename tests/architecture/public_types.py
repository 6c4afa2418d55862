"""
The public names as a type checker sees them.

mypy checks this file with the package (see pyproject.toml); no test runs it. Each `type: ignore`
marks a mistake of a user; mypy fails when it no longer finds the mistake.
"""

from collections.abc import Mapping
from typing import Any

import studydb


def train(config: dict[str, Any], trial: studydb.Trial) -> None:
    lr: float = config["lr"]
    for step in range(trial.start_step, 27):
        studydb.report({"loss": lr / (step + 1)}, checkpoint={"step": step})
    trial.should_prune()  # type: ignore[attr-defined]


def created(scheduler: studydb.Scheduler, searcher: studydb.Searcher) -> studydb.Study:
    space: Mapping[str, Any] = {"lr": studydb.loguniform(1e-4, 1.0)}
    studydb.create_study("digits", train, metric="loss", mode="min", num_trials="9")  # type: ignore[arg-type]
    studydb.create_study("digits", train, mode="min", n_trials=9)  # type: ignore[call-arg]
    return studydb.create_study(
        "digits",
        train,
        metric="loss",
        mode="min",
        space=space,
        scheduler=scheduler,
        searcher=searcher,
        stop={"training_iteration": 27},
    )


def run(study: studydb.Study) -> studydb.Counts:
    while (trial := study.ask(timeout=1.0)) is not None:
        step(trial)
    return study.run(workers=2)


def step(trial: studydb.OwnTrial) -> bool:
    state: dict[str, Any] = {} if trial.checkpoint is None else trial.checkpoint.to_dict()
    first: int = trial.start_step + 1
    with trial:
        goes_on: bool = trial.report({"loss": 0.5}, checkpoint=state | {"step": first})
        trial.report({"loss": 0.5}, checkpoint=first)  # type: ignore[arg-type]
    return goes_on


def read(study: studydb.Study) -> list[studydb.FrozenTrial]:
    best: studydb.FrozenTrial = study.best_trial
    status: studydb.Status = study.status
    space: studydb.Space = study.record.space
    assert best.reason is studydb.Reason.COMPLETED
    assert status is studydb.Status.FINISHED
    assert space
    return [trial for trial in study.trials if trial.state is studydb.State.TERMINATED]


def steered(study: studydb.Study) -> None:
    study.pause(0.5)  # type: ignore[arg-type]
    study.optimize(train)  # type: ignore[attr-defined]
    created(studydb.ASHA(max_t=27), studydb.RandomSearch(seed=0))
    created(studydb.ASHA, studydb.GridSearch())  # type: ignore[arg-type]
