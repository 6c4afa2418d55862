"""A storm over the workers of one study: kills, frozen hosts, and a database that crashes."""

import operator
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psutil
from postgres import PostgresServer

import studydb
from fleet import zombies
from fleet.workers import Fleet, WorkerProcess
from studydb.domain.errors import StorageTransient

SETTLE_S = 2.0
"""After the death of a supervisor, fork server or child nothing of it may live longer."""

_TICK_S = 0.02
_PREY = ("worker", "worker", "child", "child", "fork server")


@dataclass(frozen=True)
class Weather:
    """
    What a storm brings.

    Attributes:
        kills: How many SIGKILLs, at least.
        pause_s: The shortest and longest time between two.
        outages: How often the database server is stopped in immediate mode.
        outage_s: The shortest and longest time for which it stays away.
        freezes: How often a whole worker is stopped for longer than its lease.
        limit_s: When to give up.
    """

    seed: int
    workers: int
    kills: int
    pause_s: tuple[float, float] = (0.5, 2.0)
    outages: int = 0
    outage_s: tuple[float, float] = (2.0, 3.0)
    freezes: int = 1
    limit_s: float = 600.0


@dataclass
class Damage:
    """
    What a storm has done and seen.

    Attributes:
        killed: SIGKILLs by what they hit.
        survivors: Processes that outlived what they came of by more than `SETTLE_S`.
        deserters: Exit codes other than 0 of workers that nobody killed, with their words.
        awakened: What frozen workers changed when they woke, and those that did no more work.
    """

    seconds: float = 0.0
    settle_s: float = SETTLE_S
    killed: Counter[str] = field(default_factory=Counter)
    outages: int = 0
    frozen: int = 0
    survivors: list[str] = field(default_factory=list)
    deserters: list[str] = field(default_factory=list)
    awakened: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(self.killed.values())

    def shortfall(self, weather: Weather) -> list[str]:
        """What was planned and did not come."""
        done = (self.kills, self.outages, self.frozen)
        planned = (weather.kills, weather.outages, weather.freezes)
        return [f"{done} of {planned}"] * any(map(operator.lt, done, planned))

    def __str__(self) -> str:
        """For people."""
        killed = ", ".join(f"{what} {n}" for what, n in sorted(self.killed.items()))
        return (
            f"{self.kills} kills ({killed}), {self.outages} crashes of the server, "
            f"{self.frozen} frozen workers, {self.seconds:.0f} s"
        )


class Storm:
    """Rages until the study is finished and enough was killed."""

    def __init__(
        self,
        weather: Weather,
        fleet: Fleet,
        study: studydb.Study,
        *,
        server: PostgresServer | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._weather, self._fleet, self._study = weather, fleet, study
        self._server, self._say = server, say
        self._random = random.Random(weather.seed)
        self._crew: list[WorkerProcess] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._spared: WorkerProcess | None = None
        self._zombies: list[zombies.Remains] = []
        self.damage = Damage()

    def rage(self) -> Damage:
        """Do it; the study is FINISHED and every worker has ended when this returns."""
        began_s = time.monotonic()
        self._crew = [self._fleet.start() for _ in range(self._weather.workers)]
        for number in range(1, self._weather.kills + 1):
            self._rest(self._random.uniform(*self._weather.pause_s))
            self._kill_something()
            self._worsen(number)
        self._rest_until(self._is_over, self._weather.limit_s - (time.monotonic() - began_s))
        self._rest(SETTLE_S)
        self.damage.deserters += [
            self._desertion(worker) for worker in self._crew if worker.exit_code()
        ]
        self.damage.awakened += [told for one in self._zombies for told in one.changes()]
        self.damage.seconds = time.monotonic() - began_s
        return self.damage

    def _is_over(self) -> bool:
        try:
            return self._study.status == "FINISHED" and not any(w.runs for w in self._crew)
        except StorageTransient:
            return False

    def _worsen(self, number: int) -> None:
        """Spread outages and freezes evenly between the kills."""
        kills, weather = self._weather.kills, self._weather
        for turn in range(weather.outages):
            if number == kills * (turn + 1) // (weather.outages + 1) and self._server is not None:
                self._stop_server(self._server)
        for turn in range(weather.freezes):
            if number == kills * (2 * turn + 1) // (4 * weather.freezes + 2):
                self._freeze_somebody()

    # Time passes here only, so that what is due happens whatever else is waited for.

    def _rest(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        self._rest_until(lambda: time.monotonic() >= deadline_s, seconds + _TICK_S + 30.0)

    def _rest_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not in time:\n{self._fleet.words()[-8000:]}"
            now_s = time.monotonic()
            ready = [order for order in self._due if order[0] <= now_s]
            self._due = [order for order in self._due if order[0] > now_s]
            for _, act in ready:
                act()
            time.sleep(_TICK_S)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, act))

    # Kills

    def _kill_something(self) -> None:
        """Kill a worker, a fork server or a child, whichever chance names and is there."""
        preys = [worker for worker in self._crew if worker is not self._spared and worker.runs]
        if not preys:
            return
        worker = self._random.choice(preys)
        prey = self._random.choice(_PREY)
        if prey == "worker":
            self._kill_worker(worker)
        elif prey == "child":
            self._kill_process("child", self._random.choice(worker.children() or [None]))
        else:
            self._kill_process("fork server", worker.fork_server())

    def _kill_worker(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._note("worker", worker.pid)
        self._later(SETTLE_S, partial(self._look_for_survivors, worker))
        self._crew.remove(worker)
        self._crew.append(self._fleet.start())

    def _kill_process(self, what: str, process: psutil.Process | None) -> None:
        if process is None:
            return self._kill_something()
        try:
            kin = [process, *process.children(recursive=True)]
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return self._kill_something()
        self._note(what, process.pid)
        return self._later(SETTLE_S, partial(self._look_for_kin, what, kin))

    def _note(self, what: str, pid: int) -> None:
        self.damage.killed[what] += 1
        self._say(f"kill {self.damage.kills}: {what} {pid}")

    def _look_for_survivors(self, worker: WorkerProcess) -> None:
        self.damage.survivors += [f"{one} of worker {worker.pid}" for one in worker.family()]

    def _look_for_kin(self, what: str, kin: list[psutil.Process]) -> None:
        self.damage.survivors += [f"{one} of {what} {kin[0].pid}" for one in kin if _lives(one)]

    def _desertion(self, worker: WorkerProcess) -> str:
        return f"worker {worker.pid} exited with {worker.exit_code()}: {worker.words()[-2000:]}"

    # The database crashes

    def _stop_server(self, server: PostgresServer) -> None:
        server.stop("immediate")
        self.damage.outages += 1
        away_s = self._random.uniform(*self._weather.outage_s)
        self._say(f"outage {self.damage.outages}: the server is away for {away_s:.1f} s")
        self._later(away_s, server.start)

    # A host that sleeps

    def _freeze_somebody(self) -> None:
        """Stop a worker that holds a trial, until others have taken all that it holds."""
        found = self._sleeper() if self._spared is None else None
        if found is None:
            return self._later(0.25, self._freeze_somebody)
        self._spared, holder_id = found
        self.damage.frozen += 1
        self._say(f"freeze {self.damage.frozen}: worker {self._spared.pid}")
        return self._wake_when_robbed(holder_id)

    def _sleeper(self) -> tuple[WorkerProcess, int] | None:
        for worker in self._random.sample(self._crew, len(self._crew)):
            worker.freeze()
            holder_id = zombies.holder_of_a_trial(self._study, worker.pid)
            if holder_id is not None and zombies.is_writable(self._study):
                return worker, holder_id
            worker.thaw()  # idle, or in the midst of a transaction that bars everybody
        return None

    def _wake_when_robbed(self, holder_id: int) -> None:
        worker = self._spared
        assert worker is not None
        if zombies.still_holds(self._study, holder_id):
            return self._later(0.25, partial(self._wake_when_robbed, holder_id))
        self._zombies.append(zombies.Remains(self._study, holder_id))
        worker.thaw()
        self._say(f"worker {worker.pid} wakes")
        return self._later(0.25, partial(self._await_work, holder_id))

    def _await_work(self, holder_id: int) -> None:
        """Spare it until it has begun another trial, or nothing is left to begin."""
        worker = self._spared
        assert worker is not None
        if worker.runs and not self._zombies[-1].works_on:
            return self._later(0.25, partial(self._await_work, holder_id))
        self._say(f"worker {worker.pid} works on")
        self._spared = None
        return None


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
