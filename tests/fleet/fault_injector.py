"""A storm over a study's workers: kills, frozen hosts, cut lines, and a database that crashes."""

import operator
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psutil
from harness.postgres import PostgresServer

import studydb
from fleet import zombies
from fleet.workers import Fleet, WorkerProcess
from fleet.zombies import ShutOut
from studydb.domain.errors import StorageTransient

SETTLE_S = 2.0
"""After the death of a supervisor, fork server or child nothing of it may live longer."""

_TICK_S = 0.02
_PREY = ("worker", "worker", "child", "child", "fork server", "template")


CALM_S = 60.0
"""Once the faults have stopped, a study is finished after a lease and this, at the latest."""

_AHEAD, _MORE = 3, 10
"""Trials per worker that are still to come before the budget grows, and by how many it grows."""


@dataclass(frozen=True)
class Weather:
    """
    What a storm brings.

    Attributes:
        kills: How many SIGKILLs, at least.
        pause_s: The shortest and longest time between two.
        lasts_s: For how long things go wrong, at least; the study is extended until then.
        outages: How often the database server is stopped in immediate mode.
        outage_s: The shortest and longest time for which it stays away.
        freezes: How often a whole worker is stopped for longer than its lease.
        partitions: How often a worker's line to the database is frozen or cut for as long.
        limit_s: When to give up.
    """

    seed: int
    workers: int
    kills: int
    pause_s: tuple[float, float] = (0.5, 2.0)
    lasts_s: float = 0.0
    outages: int = 0
    outage_s: tuple[float, float] = (2.0, 3.0)
    freezes: int = 1
    partitions: int = 0
    limit_s: float = 600.0


@dataclass
class Damage:
    """
    What a storm has done and seen.

    Attributes:
        killed: SIGKILLs by what they hit.
        extended: By how many trials the study grew.
        survivors: Processes that outlived what they came of by more than `SETTLE_S`.
        deserters: Exit codes other than 0 of workers that nobody killed, with their words.
        awakened: What those that were shut out changed when they came back, or that they did not
            work on.
        calm_s: From the end of the last fault to the end of the study and its workers.
    """

    seconds: float = 0.0
    settle_s: float = SETTLE_S
    killed: Counter[str] = field(default_factory=Counter)
    extended: int = 0
    outages: int = 0
    frozen: int = 0
    partitioned: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)
    deserters: list[str] = field(default_factory=list)
    awakened: list[str] = field(default_factory=list)
    calm_s: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.killed.values())

    def shortfall(self, weather: Weather) -> list[str]:
        """What was planned and did not come."""
        done = (self.kills, self.outages, self.frozen, self.partitioned.total())
        planned = (weather.kills, weather.outages, weather.freezes, weather.partitions)
        return [f"{done} of {planned}"] * any(map(operator.lt, done, planned))

    def __str__(self) -> str:
        """For people."""
        return (
            f"{self.kills} kills ({_listed(self.killed)}), {self.outages} crashes of the server, "
            f"{self.frozen} frozen workers, {self.partitioned.total()} partitions "
            f"({_listed(self.partitioned)}), {self.seconds:.0f} s; finished {self.calm_s:.0f} s "
            "after the last of it"
        )


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items())) or "none"


class Storm:
    """Rages until enough has gone wrong and the study is finished."""

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
        self._began_s = time.monotonic()
        self._crew: list[WorkerProcess] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._shut_out: list[ShutOut] = []
        self._spared: ShutOut | None = None
        self._is_away = False
        self.damage = Damage()

    def rage(self) -> Damage:
        """Do it; the study is FINISHED and every worker has ended when this returns."""
        self._crew = [self._fleet.start() for _ in range(self._weather.workers)]
        planned = self._plan()
        while planned and not self._is_over():
            self._rest(self._random.uniform(*self._weather.pause_s))
            self._kill_something()
            self._extend()
            while planned and self._progress() >= planned[0][0]:
                planned.pop(0)[1]()
        while not self._is_calm() and not self._is_over():
            self._rest(self._weather.pause_s[0])
            self._extend()
        self._see_it_end()
        return self.damage

    def _see_it_end(self) -> None:
        calm_since_s = time.monotonic()
        self._rest_until(self._is_over, self._remaining_s())
        self.damage.calm_s = time.monotonic() - calm_since_s
        self._rest(SETTLE_S)
        self.damage.deserters += [
            self._desertion(worker) for worker in self._crew if worker.exit_code()
        ]
        self.damage.awakened += [told for one in self._shut_out for told in one.changes()]
        self.damage.seconds = self._passed_s()

    def _plan(self) -> list[tuple[float, Callable[[], None]]]:
        """What happens beside kills, by when: shares of the whole; spread evenly, early enough."""
        weather, orders = self._weather, []
        frozen_or_cut = ["frozen line", "cut line"]
        shut_out = ["SIGSTOP"] * weather.freezes + [
            frozen_or_cut[turn % 2] for turn in range(weather.partitions)
        ]
        self._random.shuffle(shut_out)
        if self._server is not None:
            orders += _spread([partial(self._stop_server, self._server)] * weather.outages, 1.0)
        orders += _spread([partial(self._shut_somebody_out, how) for how in shut_out], 0.7)
        orders.append((1.0, lambda: None))
        return sorted(orders, key=operator.itemgetter(0))

    def _progress(self) -> float:
        lasts_s = self._weather.lasts_s
        shares = [self.damage.kills / self._weather.kills]
        if lasts_s:
            shares.append(self._passed_s() / lasts_s)
        return min(shares)

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _remaining_s(self) -> float:
        return self._weather.limit_s - self._passed_s()

    def _is_calm(self) -> bool:
        is_done = not self.damage.shortfall(self._weather)
        return is_done and self._spared is None and not self._is_away

    def _is_over(self) -> bool:
        try:
            return self._study.status == "FINISHED" and not any(w.runs for w in self._crew)
        except StorageTransient:
            return False

    def _extend(self) -> None:
        """As long as it is to last, let there be something to do."""
        if not self._weather.lasts_s or self._is_away:
            return
        left = zombies.to_come(self._study)
        if left is not None and left < _AHEAD * self._weather.workers:
            self._study.extend(num_trials=_MORE)
            self.damage.extended += _MORE

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
        """Kill a worker, a fork server, a template or a child, as chance has it and as is there."""
        spared = self._spared and self._spared.worker
        preys = [worker for worker in self._crew if worker is not spared and worker.runs]
        if not preys:
            return
        worker = self._random.choice(preys)
        prey = self._random.choice(_PREY)
        if prey == "worker":
            self._kill_worker(worker)
        elif prey == "child":
            self._kill_process("child", self._random.choice(worker.children() or [None]))
        elif prey == "template":
            self._kill_process("template", self._random.choice(worker.templates() or [None]))
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
        if self._is_away:
            return self._later(1.0, partial(self._stop_server, server))
        server.stop("immediate")
        self._is_away = True
        self.damage.outages += 1
        away_s = self._random.uniform(*self._weather.outage_s)
        self._say(f"outage {self.damage.outages}: the server is away for {away_s:.1f} s")
        return self._later(away_s, partial(self._start_server, server))

    def _start_server(self, server: PostgresServer) -> None:
        server.start()
        self._is_away = False

    # A host that sleeps, a network that drops

    def _shut_somebody_out(self, how: str) -> None:
        """Keep a worker that holds a trial from the database until others have taken all of it."""
        found = self._holder(how) if self._spared is None else None
        if found is None:
            return self._later(0.25, partial(self._shut_somebody_out, how))
        self._spared = found
        self._note_shut_out(how)
        self._say(f"{how}: worker {found.worker.pid}")
        return self._come_back_when_robbed(found)

    def _note_shut_out(self, how: str) -> None:
        if how == "SIGSTOP":
            self.damage.frozen += 1
        else:
            self.damage.partitioned[how] += 1

    def _holder(self, how: str) -> ShutOut | None:
        if self._is_away:
            return None
        running = [worker for worker in self._crew if worker.runs]
        for worker in self._random.sample(running, len(running)):
            one = ShutOut(self._study, worker, how)
            if one.is_robbable():
                return one
            one.come_back()  # idle, or in the midst of a transaction that bars everybody
        return None

    def _come_back_when_robbed(self, one: ShutOut) -> None:
        if self._is_away or not one.is_robbed():
            return self._later(0.25, partial(self._come_back_when_robbed, one))
        self._shut_out.append(one)
        one.come_back()
        self._say(f"worker {one.worker.pid} is back")
        return self._later(0.25, partial(self._await_work, one))

    def _await_work(self, one: ShutOut) -> None:
        """Spare it until it has begun another trial, or nothing is left to begin."""
        if one.worker.runs and not one.works_on:
            return self._later(0.25, partial(self._await_work, one))
        self._say(f"worker {one.worker.pid} works on")
        self._spared = None
        return None


def _spread(
    acts: Sequence[Callable[[], None]], until: float
) -> list[tuple[float, Callable[[], None]]]:
    return [(until * (turn + 1) / (len(acts) + 1), act) for turn, act in enumerate(acts)]


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
