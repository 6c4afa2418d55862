"""Processes that run trials in own loops, and people who request at random, all at the same time."""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.synchronize import Barrier
from random import Random
from typing import Any

import studydb
from studydb.domain.errors import BudgetSpent, LeaseLost, NotAllowed, UnknownTrial

REFUSALS = (BudgetSpent, LeaseLost, NotAllowed, UnknownTrial)
"""What a request or a report may be answered because of what others have done meanwhile."""

LONGEST_RUN = 9

START_PATIENCE_S = 120.0
"""How long a process waits for the others, which import studydb, on a busy host."""

REQUESTS: dict[str, Callable[[studydb.Study, Random, list[int]], Any]] = {
    "pause": lambda study, _, numbers: study.pause(*numbers),
    "resume": lambda study, _, numbers: study.resume(*numbers),
    "resume changed": lambda study, rng, numbers: study.resume(numbers[0], lr=rng.random()),
    "stop": lambda study, rng, numbers: study.stop(*numbers, now=rng.random() < 0.5),
    "retry": lambda study, rng, numbers: study.retry(*numbers, from_scratch=rng.random() < 0.5),
    "retry all": lambda study, _, __: study.retry(select="errored"),
    "invalidate": lambda study, _, numbers: study.invalidate(*numbers, reason="wrong labels"),
    "undo": lambda study, _, numbers: study.invalidate(*numbers, undo=True),
    "enqueue": lambda study, rng, _: study.enqueue({"lr": rng.random()}),
    "extend": lambda study, _, __: study.extend(num_trials=5),
    "set": lambda study, rng, _: study.set(max_steps=rng.randint(10**6, 10**7)),
    "note": lambda study, _, numbers: study.note("seen", trial=numbers[0]),
    "tag": lambda study, rng, numbers: study.tag(*numbers, add=[f"tag{rng.randint(0, 3)}"]),
    "pause the study": lambda study, _, __: study.pause(),
    "stop the study": lambda study, _, __: study.stop(),
    "resume the study": lambda study, _, __: study.resume(),
}


def request_or_run(storage: str, name: str, place: int, seconds: float, begin: Barrier) -> None:
    """Once all processes are ready, run trials if `place` is even, else make requests."""
    rng = Random(place)
    with closing(studydb.load_study(name, storage=storage)) as study:
        begin.wait(START_PATIENCE_S)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            with suppress(*REFUSALS):  # any other error ends the process with exit code 1
                (_run_a_trial if place % 2 == 0 else _request)(study, rng)


def _request(study: studydb.Study, rng: Random) -> None:
    n_trials = max(1, sum(_numbers_of(study.counts)))
    newest = [max(0, n_trials - 1 - rng.randrange(12)) for _ in range(rng.randint(1, 3))]
    request = rng.choice(list(REQUESTS))
    REQUESTS[request](study, rng, newest)
    if request in ("pause the study", "stop the study"):
        study.resume()


def _numbers_of(counts: Any) -> list[int]:
    return [counts.pending, counts.running, counts.paused, counts.terminated, counts.error]


def _run_a_trial(study: studydb.Study, rng: Random) -> None:
    trial = None
    with suppress(TimeoutError):
        trial = study.ask(timeout=1.0)
    if trial is None:
        with suppress(NotAllowed):
            study.resume()
        study.extend(num_trials=1)
        return
    for _ in range(rng.randint(1, LONGEST_RUN)):
        checkpoint = {"weights": [0.5]} if rng.random() < 0.3 else None
        if not trial.report({"loss": rng.random()}, checkpoint=checkpoint):
            return
        if rng.random() < 0.3:
            trial.flush()
    if rng.random() < 0.3:
        trial.fail(ValueError("no luck"))
    else:
        trial.finish()
