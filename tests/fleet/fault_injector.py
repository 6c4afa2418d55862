"""Injects faults into a study: kills, freezes, partitions, outages of database and store."""

import operator
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psutil
from harness.postgres import PostgresServer

import studydb
from fleet import disconnected
from fleet.departures import Departures, is_stopped, lives
from fleet.disconnected import DisconnectedWorker
from fleet.workers import Fleet, WorkerProcess
from studydb.domain.errors import StorageTransient

if TYPE_CHECKING:
    from fleet.faulty_store import FaultyStore

SETTLE_S = 2.0
"""How long processes may live after the process above them has ended."""

_TICK_S = 0.02
TARGETS = ("worker", "worker", "child", "child", "fork server", "template")
TARGETS_OF_COMMANDS = ("worker", "worker", "fork server", "child", "command", "program")
"""
The kinds of processes to kill. Each kill draws one entry, so a kind that is named twice is drawn
twice as often. If trials are commands, the child starts the command, which starts the program.
"""

_LEVELS_TO_RUNNER = {"command": 0, "program": 1}
"""
Which ancestor of a killed process is the trial's process; 0 is the parent. If a command is killed,
the trial's process kills the processes that the command leaves behind, but only after the database
has answered the trial's last report. So `SETTLE_S` counts from the end of the trial's process.
"""

RECOVERY_S = 60.0
"""After the last fault, a study must finish within a lease plus this time."""

_LEAST_UNSTARTED_PER_WORKER, _ADDED_TRIALS = 3, 10
"""In a run with `lasts_s`, 10 trials are added when fewer than 3 per worker are unstarted."""


@dataclass(frozen=True)
class FaultPlan:
    """
    Which faults to inject, and how often.

    Attributes:
        kills: The least number of SIGKILLs.
        targets: The kinds of processes to kill; each kill draws one entry.
        pause_s: The shortest and longest pause before each kill.
        lasts_s: The least time for which faults are injected. If it is not 0, the study gets new
            trials until all planned faults are injected.
        outages: How often the database server is stopped in immediate mode.
        outage_s: The shortest and longest time of an outage.
        freezes: How often a worker's processes are stopped by SIGSTOP for longer than the lease.
        partitions: How often a worker's proxy is frozen or cut for longer than the lease.
        store_outages: How often the store of checkpoints goes away.
        limit_s: The time after which the run fails.
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
    store_outages: int = 0
    store_outage_s: tuple[float, float] = (4.0, 8.0)
    limit_s: float = 600.0
    targets: Sequence[str] = TARGETS


@dataclass
class FaultReport:
    """
    Which faults were injected, and what went wrong.

    Attributes:
        killed: The number of SIGKILLs by kind of process.
        extended: The number of trials by which the study grew.
        departures: How long processes lived after the process above them had ended.
        unexpected_exits: Exit code and output of each worker that failed without being killed.
        zombie_writes: Rows that a worker changed for its lost attempt after its connection came
            back; also each worker that claimed no trial after its connection came back.
        recovery_s: The time from the end of the last fault to the end of the study and its workers.
    """

    seconds: float = 0.0
    settle_s: float = SETTLE_S
    killed: Counter[str] = field(default_factory=Counter)
    extended: int = 0
    outages: int = 0
    frozen: int = 0
    partitioned: Counter[str] = field(default_factory=Counter)
    store_outages: int = 0
    departures: Departures = field(default_factory=lambda: Departures(SETTLE_S))
    unexpected_exits: list[str] = field(default_factory=list)
    zombie_writes: list[str] = field(default_factory=list)
    recovery_s: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.killed.values())

    def shortfall(self, plan: FaultPlan) -> list[str]:
        """Say which faults were injected less often than planned."""
        counts = {
            "kills": (self.kills, plan.kills),
            "crashes of the server": (self.outages, plan.outages),
            "frozen workers": (self.frozen, plan.freezes),
            "partitions": (self.partitioned.total(), plan.partitions),
            "outages of the store": (self.store_outages, plan.store_outages),
        }
        return [
            f"{done} of {planned} {what}"
            for what, (done, planned) in counts.items()
            if done < planned
        ]

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({_listed(self.killed)}), {self.outages} crashes of the server, "
            f"{self.frozen} frozen workers, {self.partitioned.total()} partitions "
            f"({_listed(self.partitioned)}), {self.store_outages} outages of the store, "
            f"{self.seconds:.0f} s; finished {self.recovery_s:.0f} s "
            "after the last fault; longest life of a child process after the death of its parent: "
            f"{self.departures}"
        )


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items())) or "none"


class FaultInjector:
    """Injects faults until the plan is done, or the study and its workers have ended."""

    def __init__(
        self,
        plan: FaultPlan,
        fleet: Fleet,
        study: studydb.Study,
        *,
        server: PostgresServer | None = None,
        store: "FaultyStore | None" = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._plan, self._fleet, self._study = plan, fleet, study
        self._server, self._store, self._say = server, store, say
        self._random = random.Random(plan.seed)
        self._began_s = time.monotonic()
        self._workers: list[WorkerProcess] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._disconnected: list[DisconnectedWorker] = []
        self._reserved: DisconnectedWorker | None = None
        self._is_away = self._store_is_away = False
        self.report = FaultReport()

    def run(self) -> FaultReport:
        """
        Inject the planned faults while the study or a worker runs.

        Returns when the study is FINISHED and every worker has ended. `FaultReport` counts the
        faults.
        """
        self._workers = [self._fleet.start() for _ in range(self._plan.workers)]
        planned = self._schedule()
        while planned and not self._is_over():
            self._rest(self._random.uniform(*self._plan.pause_s))
            self._kill_something()
            self._extend()
            while planned and self._progress() >= planned[0][0]:
                planned.pop(0)[1]()
        while not self._is_plan_done() and not self._is_over():
            self._rest(self._plan.pause_s[0])
            self._extend()
        self._await_end()
        return self.report

    def _await_end(self) -> None:
        faults_ended_s = time.monotonic()
        self._rest_until(self._is_over)
        self.report.recovery_s = time.monotonic() - faults_ended_s
        for worker in self._workers:
            self.report.departures.watch("worker that ended", worker.processes)
        self.report.departures.wait()
        self.report.unexpected_exits += [
            self._unexpected_exit(worker) for worker in self._workers if worker.exit_code()
        ]
        self.report.zombie_writes += [
            change for one in self._disconnected for change in one.changes()
        ]
        self.report.seconds = self._passed_s()

    def _schedule(self) -> list[tuple[float, Callable[[], None]]]:
        """Every fault except kills, with the share of the plan (0 to 1) after which it is due."""
        plan, scheduled = self._plan, []
        frozen_or_cut = ["frozen line", "cut line"]
        disconnections = ["SIGSTOP"] * plan.freezes + [
            frozen_or_cut[turn % 2] for turn in range(plan.partitions)
        ]
        self._random.shuffle(disconnections)
        if self._server is not None:
            scheduled += _spread([partial(self._stop_server, self._server)] * plan.outages, 1.0)
        if self._store is not None:
            stop_store = partial(self._stop_store, self._store)
            scheduled += _spread([stop_store] * plan.store_outages, 1.0)
        scheduled += _spread(
            [partial(self._disconnect_a_worker, how) for how in disconnections], 0.7
        )
        scheduled.append((1.0, lambda: None))  # no fault: `run` kills until the last entry is due
        return sorted(scheduled, key=operator.itemgetter(0))

    def _progress(self) -> float:
        lasts_s = self._plan.lasts_s
        shares = [self.report.kills / self._plan.kills]
        if lasts_s:
            shares.append(self._passed_s() / lasts_s)
        return min(shares)

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _is_plan_done(self) -> bool:
        is_done = not self.report.shortfall(self._plan)
        return is_done and self._reserved is None and not (self._is_away or self._store_is_away)

    def _is_over(self) -> bool:
        try:
            return self._study.status == "FINISHED" and not any(w.runs for w in self._workers)
        except StorageTransient:
            return False

    def _extend(self) -> None:
        if not self._plan.lasts_s or self._is_away:
            return
        left = disconnected.unstarted_trials(self._study)
        if left is not None and left < _LEAST_UNSTARTED_PER_WORKER * self._plan.workers:
            self._study.extend(num_trials=_ADDED_TRIALS)
            self.report.extended += _ADDED_TRIALS

    # Every wait calls `_rest` or `_rest_until`, which run the actions that become due meanwhile.

    def _rest(self, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        self._rest_until(lambda: time.monotonic() >= deadline_s)

    def _rest_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self._passed_s() < self._plan.limit_s, (
                f"The run did not end within {self._plan.limit_s:g} s "
                f"({self.report.shortfall(self._plan) or 'all faults were injected'}). "
                f"Its workers printed:\n{self._fleet.output()[-8000:]}"
            )
            now_s = time.monotonic()
            ready = [due for due in self._due if due[0] <= now_s]
            self._due = [due for due in self._due if due[0] > now_s]
            for _, act in ready:
                act()
            time.sleep(_TICK_S)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, act))

    # Kills

    def _kill_something(self) -> None:
        reserved = self._reserved and self._reserved.worker
        targets = [worker for worker in self._workers if worker is not reserved and worker.runs]
        if not targets:
            return
        worker = self._random.choice(targets)
        target = self._random.choice(self._plan.targets)
        if target == "worker":
            self._kill_worker(worker)
            return
        found = {
            "child": worker.children,
            "template": worker.templates,
            "command": worker.commands,
            "program": worker.programs,
            "fork server": worker.fork_servers,
        }[target]()
        if found:
            self._kill_process(target, self._random.choice(found), worker)

    def _kill_worker(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._note("worker", worker.pid)
        self.report.departures.watch("killed worker", worker.processes)
        self._workers.remove(worker)
        self._workers.append(self._fleet.start())

    def _kill_process(self, what: str, process: psutil.Process, worker: WorkerProcess) -> None:
        try:
            supervisor = psutil.Process(worker.pid)
            relatives = [process, *process.children(recursive=True)]
            runner = (
                process.parents()[_LEVELS_TO_RUNNER[what]] if what in _LEVELS_TO_RUNNER else None
            )
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return
        self._note(what, process.pid)
        self.report.departures.watch(
            f"killed {what}",
            partial(_living, relatives),
            # A worker ends what a killed fork server has left; a frozen worker does so later.
            waits=lambda: (
                self._is_away or is_stopped(supervisor) or (runner is not None and lives(runner))
            ),
        )

    def _note(self, what: str, pid: int) -> None:
        self.report.killed[what] += 1
        self._say(f"kill {self.report.kills}: {what} {pid}")

    def _unexpected_exit(self, worker: WorkerProcess) -> str:
        return f"worker {worker.pid} exited with {worker.exit_code()}: {worker.output()[-2000:]}"

    # Outages of the database and of the store

    def _stop_server(self, server: PostgresServer) -> None:
        if self._is_away:
            return self._later(1.0, partial(self._stop_server, server))
        server.stop("immediate")
        self._is_away = True
        self.report.outages += 1
        away_s = self._random.uniform(*self._plan.outage_s)
        self._say(f"outage {self.report.outages}: the server is away for {away_s:.1f} s")
        return self._later(away_s, partial(self._start_server, server))

    def _start_server(self, server: PostgresServer) -> None:
        server.start()
        self._is_away = False

    def _stop_store(self, store: "FaultyStore") -> None:
        if self._store_is_away:
            return self._later(1.0, partial(self._stop_store, store))
        store.go_away()
        self._store_is_away = True
        self.report.store_outages += 1
        away_s = self._random.uniform(*self._plan.store_outage_s)
        self._say(f"outage {self.report.store_outages} of the store: away for {away_s:.1f} s")
        return self._later(away_s, partial(self._start_store, store))

    def _start_store(self, store: "FaultyStore") -> None:
        store.come_back()
        self._store_is_away = False

    # Frozen hosts and network partitions

    def _disconnect_a_worker(self, how: str) -> None:
        """Disconnect a worker that holds a trial; reconnect it once its trials are recovered."""
        found = self._holder(how) if self._reserved is None else None
        if found is None:
            return self._later(0.25, partial(self._disconnect_a_worker, how))
        self._reserved = found
        if how == "SIGSTOP":
            self.report.frozen += 1
        else:
            self.report.partitioned[how] += 1
        self._say(f"{how}: worker {found.worker.pid}")
        return self._reconnect_when_recovered(found)

    def _holder(self, how: str) -> DisconnectedWorker | None:
        if self._is_away:
            return None
        running = [worker for worker in self._workers if worker.runs]
        for worker in self._random.sample(running, len(running)):
            one = DisconnectedWorker(self._study, worker, how)
            if one.holds_a_recoverable_trial():
                return one
            one.reconnect()  # the worker holds no trial, or its transaction blocks other writers
        return None

    def _reconnect_when_recovered(self, one: DisconnectedWorker) -> None:
        if self._is_away or not one.was_recovered():
            return self._later(0.25, partial(self._reconnect_when_recovered, one))
        self._disconnected.append(one)
        one.reconnect()
        self._say(f"worker {one.worker.pid} is connected again")
        return self._later(0.25, partial(self._await_next_claim, one))

    def _await_next_claim(self, one: DisconnectedWorker) -> None:
        """Keep the worker safe from kills until it has claimed another trial or ended."""
        if one.worker.runs and not one.claimed_again:
            return self._later(0.25, partial(self._await_next_claim, one))
        self._say(f"worker {one.worker.pid} has claimed again or ended")
        self._reserved = None
        return None


def _spread(
    acts: Sequence[Callable[[], None]], until: float
) -> list[tuple[float, Callable[[], None]]]:
    return [(until * (turn + 1) / (len(acts) + 1), act) for turn, act in enumerate(acts)]


def _living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if lives(process)]
