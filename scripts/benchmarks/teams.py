"""
Processes that measure slices when the leading process (which runs the command) asks for them.

All teams of a benchmark start and connect. Then each contender has one slice as a warm-up, which
does not count. Only one team works at a time, so that contenders take turns on the same machine
within seconds.
"""

import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

START_TIMEOUT_S = 120.0
SLICE_GRACE_S = 60.0
"""How long the last step may go on after the end of a slice."""

STOP_TIMEOUT_S = 10.0

Step = Callable[[], int]
"""Does one piece of work, and returns how many units (trials, rows) it has done."""

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Plan:
    """
    What the processes of a team do.

    Attributes:
        build: Called in each process; returns a step for each contender. The arguments are an
            ExitStack for connections, and as keywords the process's `index` and the entries of
            `options`. `build` is pickled, so it must be a function of a module.
    """

    build: Callable[..., Mapping[str, Step]]
    options: Mapping[str, Any]


class Team:
    """The processes of one plan. They measure slices together, and end with the `with` block."""

    def __init__(self, plan: Plan, size: int) -> None:
        self._barrier = _SPAWN.Barrier(size)
        self._processes, self._pipes = [], []
        for index in range(size):
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(
                target=_serve, args=(plan, index, theirs, self._barrier), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def ready(self) -> None:
        """Wait until every process is connected."""
        self._answers(START_TIMEOUT_S)

    def run(self, contender: str, seconds: float) -> float:
        """
        Let every process work on one contender for some seconds.

        Returns:
            The sum of the processes' units per second; a process is timed until its last step ends.
        """
        for pipe in self._pipes:
            pipe.send((contender, seconds))
        return sum(self._answers(seconds + SLICE_GRACE_S))

    def _answers(self, timeout_s: float) -> list[float]:
        deadline = time.monotonic() + timeout_s
        answers = [_answer(pipe, max(0.0, deadline - time.monotonic())) for pipe in self._pipes]
        failures = [answer for answer in answers if isinstance(answer, str)]
        if failures:
            raise RuntimeError(
                f"{len(failures)} processes of the benchmark failed.\n{max(failures, key=len)}"
            )
        return [answer for answer in answers if isinstance(answer, float)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; kill processes that do not end in time."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()


def _answer(pipe: Any, timeout_s: float) -> float | str:
    """The answer of a process: a rate, or the text of its error."""
    try:
        return pipe.recv() if pipe.poll(timeout_s) else "A process gave no answer in time."
    except (EOFError, OSError):
        return "A process ended without an answer."


def _serve(plan: Plan, index: int, pipe: Any, barrier: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leading process handles Ctrl-C
    try:
        with ExitStack() as stack:
            steps = plan.build(stack, index=index, **plan.options)
            pipe.send(0.0)
            while True:
                contender, seconds = pipe.recv()
                barrier.wait(START_TIMEOUT_S)
                pipe.send(_slice(steps[contender], seconds))
    except (EOFError, OSError, threading.BrokenBarrierError):
        pass  # the leading process has ended, or another process has failed and sent its error
    except Exception:  # noqa: BLE001  sent to the leading process
        barrier.abort()
        with suppress(OSError):
            pipe.send(traceback.format_exc())


def _slice(step: Step, seconds: float) -> float:
    units, began_s = 0, time.perf_counter()
    deadline = began_s + seconds
    while time.perf_counter() < deadline:
        units += step()
    return units / (time.perf_counter() - began_s)
