"""
Processes that run trials in own loops, and processes that send people's requests at random.

All run at the same time. `Stress` starts them, and kills and replaces those that run trials.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.synchronize import Event, Semaphore
from random import Random
from typing import Any

import studydb
from studydb.domain.errors import BudgetSpent, LeaseLost, NotAllowed, UnknownTrial

REFUSALS = (BudgetSpent, LeaseLost, NotAllowed, UnknownTrial)
"""The errors that a call may raise because of what other processes have done meanwhile."""

LONGEST_RUN = 9

STUDIES_PER_PROCESS = 4
"""Each open study takes up to two of the 400 connections that the server allows."""

JOIN_S = 120.0
"""How long a process may take to begin, and to end after `over` is set."""

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


@dataclass(frozen=True)
class _Shared:
    """Data that all processes get. A process releases `begun` once, and ends when `over` is set."""

    storage: str
    names: Sequence[str]
    begun: Semaphore
    over: Event


class Stress:
    """
    Half of the processes run trials of the studies; the other half sends people's requests.

    Attributes:
        n_killed: How many of the processes that run trials were killed and replaced.
    """

    def __init__(self, storage: str, names: Sequence[str], *, processes: int) -> None:
        self._places = range(processes)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["harness.request_stress"])
        begun, over = self._context.Semaphore(0), self._context.Event()
        self._shared = _Shared(storage, names, begun, over)
        self.n_killed = 0
        self._seeds = count()

    def run(self, *, seconds: float, kill_every_s: float) -> list[int | None]:
        """Run the processes; return the exit codes of all that were not replaced."""
        self._shared.over.clear()
        while self._shared.begun.acquire(block=False):
            pass  # processes that replaced killed ones in the previous run released `begun`, too
        running = {place: self._start(place) for place in self._places}
        for _ in running:
            assert self._shared.begun.acquire(timeout=JOIN_S)
        runners = self._places[::2]
        end_s = time.monotonic() + seconds
        while time.monotonic() + kill_every_s < end_s:
            time.sleep(kill_every_s)
            place = runners[self.n_killed % len(runners)]
            running[place].kill()
            running[place].join()
            self.n_killed += 1
            running[place] = self._start(place)
        self._shared.over.set()
        for process in running.values():
            process.join(JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in running.values()]

    def _start(self, place: int) -> Any:
        act, seed = _run_a_trial if place % 2 == 0 else _request, next(self._seeds)
        process = self._context.Process(target=_repeat, args=(act, seed, self._shared))
        process.start()
        return process


def _repeat(act: Callable[[studydb.Study, Random], None], seed: int, shared: _Shared) -> None:
    """Open some of the studies; until `over` is set, repeat: choose one at random and act on it."""
    rng = Random(seed)
    with ExitStack() as stack:
        studies = [
            stack.enter_context(closing(studydb.load_study(name, storage=shared.storage)))
            for name in rng.sample(shared.names, STUDIES_PER_PROCESS)
        ]
        shared.begun.release()
        while not shared.over.is_set():
            with suppress(*REFUSALS):  # any other error ends the process with exit code 1
                act(rng.choice(studies), rng)


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
