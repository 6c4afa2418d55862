"""Workers of unequal size run trials of several sizes, and some workers are killed meanwhile."""

import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

import studydb
from fleet.workers import TRAINABLES, Fleet, WorkerProcess
from studydb.db.schema import attempt, trial, worker
from studydb.domain.resources import Capacity, Resources, read_capacity, read_resources

LEASE_S = 4.0

SIZES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (6, 2), (8, 4), (8, 8))
"""How many CPUs and cards each worker offers; a card is a custom resource with the name "card"."""

WEIGHTS = (8, 8, 8, 3, 1)
"""
How frequent each request of `REQUESTS` is. The last fits only two of the eight workers, and only
while they run no other trial.
"""

REQUESTS = ("cpus=1", "cpus=2, card=1", "cpus=1, card=0.5", "cpus=4, card=2", "cpus=8")
"""What trials ask for."""


@dataclass(frozen=True)
class Span:
    """When a process ran a trial, as recorded by the trial with the host's monotonic clock."""

    worker: str
    asked: Resources
    start_s: float
    end_s: float


@dataclass(frozen=True)
class AttemptTimes:
    """An attempt, read from its row; times are in seconds since the first attempt began."""

    number: int
    asked: str
    worker_id: int
    start_s: float
    end_s: float


@dataclass
class Run:
    """
    The records of one run, and checks of what must hold for it.

    Attributes:
        capacities: What each worker offers, by `WorkerProcess.mark`.
        offers: What each worker offers, by the id of the worker's row.
        lives: By the id of the worker's row: when the row was made, and when the worker's last
            trial ended, in seconds since the first attempt began.
        kills_s: When workers were killed, in seconds since the first attempt began.
    """

    spans: list[Span]
    attempts: list[AttemptTimes]
    capacities: dict[str, Capacity]
    offers: dict[int, Capacity]
    lives: dict[int, tuple[float, float]]
    slots: int
    reserve_after_s: float
    kills_s: list[float] = field(default_factory=list)

    def oversubscribed(self) -> list[str]:
        """List each resource of which trials used more at one moment than their worker offers."""
        wrong: list[str] = []
        by_worker: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            by_worker[span.worker].append(span)
        for mark, spans in by_worker.items():
            for moment in sorted({span.start_s for span in spans}):
                used: Counter[str] = Counter()
                for span in spans:
                    if span.start_s <= moment < span.end_s:
                        used.update(span.asked.amounts)
                offered = self.capacities[mark].amounts
                wrong += [
                    f"{name}: {used[name]} of {offered.get(name, 0)}"
                    for name in used
                    if used[name] > offered.get(name, 0) + 1e-6
                ]
        return wrong

    @property
    def longest_s(self) -> float:
        return max(times.end_s - times.start_s for times in self.attempts)

    def waits(self) -> dict[str, float]:
        """
        Return, by request, the longest time that a trial has waited as the first of the queue.

        A trial is the first of the queue once all trials with lower numbers have begun. A wait in
        which a worker was killed is left out, because the worker that replaces it counts
        `reserve_after_s` from its own start.
        """
        first: dict[int, AttemptTimes] = {}
        for times in sorted(self.attempts, key=lambda each: each.start_s):
            first.setdefault(times.number, times)
        longest: dict[str, float] = defaultdict(float)
        head_s = 0.0
        for number in sorted(first):
            times = first[number]
            is_cut = any(head_s <= kill_s <= times.start_s for kill_s in self.kills_s)
            if not is_cut:
                longest[times.asked] = max(longest[times.asked], times.start_s - head_s)
            head_s = max(head_s, times.start_s)
        return dict(longest)

    def summary(self) -> str:
        """Return the figures of the run in a line."""
        waits = {asked: round(wait_s, 2) for asked, wait_s in self.waits().items()}
        n_trials = len({times.number for times in self.attempts})
        return (
            f"{len(self.attempts)} attempts of {n_trials} trials on "
            f"{len(self.offers)} workers, {len(self.kills_s)} killed; oversubscribed "
            f"{len(self.oversubscribed())} times; longest waits {waits}, the longest trial "
            f"{self.longest_s:.2f} s; workers busy {self.busy_share():.1%}"
        )

    def busy_share(self) -> float:
        """
        Return the busy time divided by the sum of the busy time and the idle time.

        The busy time is the sum over all slots of the seconds in which they run trials. The idle
        time is the sum over all workers of the seconds in which a worker has a free slot (one or
        more), and a trial that has not begun would fit. A worker that may be reserved for the first
        trial of the queue is not idle, nor is a worker after its last trial.
        """
        busy_s = idle_s = 0.0
        asked = {text: read_resources("asked", text) for text in REQUESTS}
        for start_s, end_s, running, waiting in self._intervals():
            head = min(waiting, default=None)
            for worker_id, offer in self.offers.items():
                born_s, last_end_s = self.lives[worker_id]
                if start_s < born_s or end_s > last_end_s:
                    continue
                mine = [asked[one.asked] for one in running if one.worker_id == worker_id]
                free = offer
                for request in mine:  # `oversubscribed` reports trials that do not fit
                    free = free.minus(request) if free.fits(request) else free
                busy_s += len(mine) * (end_s - start_s)
                if len(mine) >= self.slots or head is None:
                    continue
                of_head = asked[waiting[head]]
                if offer.fits(of_head) and not free.fits(of_head):
                    continue  # the worker may be reserved for the first trial
                if any(free.fits(asked[text]) for text in set(waiting.values())):
                    idle_s += end_s - start_s
        return busy_s / (busy_s + idle_s)

    def _intervals(self) -> Iterator[tuple[float, float, list[AttemptTimes], dict[int, str]]]:
        moments = sorted({s for times in self.attempts for s in (times.start_s, times.end_s)})
        begun: dict[int, float] = {}
        for times in self.attempts:
            begun[times.number] = min(times.start_s, begun.get(times.number, times.start_s))
        asked = {times.number: times.asked for times in self.attempts}
        for start_s, end_s in itertools.pairwise(moments):
            running = [times for times in self.attempts if times.start_s <= start_s < times.end_s]
            waiting = {number: asked[number] for number in begun if begun[number] > start_s}
            yield start_s, end_s, running, waiting


def run(
    storage: str,
    folder: Path,
    *,
    n_trials: int,
    sizes: Sequence[tuple[int, int]] = SIZES,
    trial_s: tuple[float, float],
    n_kills: int,
    slots: int = 8,
    reserve_after_s: float = 5.0,
    seed: int = 0,
    timeout_s: float = 600.0,
) -> Run:
    """
    Run trials with random requests; meanwhile kill and replace up to `n_kills` workers.

    Args:
        trial_s: The range of the trials' durations, in seconds.
    """
    rng = random.Random(seed)
    (folder / "held").mkdir(parents=True)
    options = {"lease": LEASE_S, "slots": slots, "reserve_after": reserve_after_s}
    capacities: dict[str, Capacity] = {}
    kills_s: list[float] = []
    with (
        closing(_make_study(storage, folder, n_trials, trial_s, rng)) as study,
        Fleet(storage, "shared", folder, preloaded=True, **options) as fleet,
    ):

        def start(size: tuple[int, int]) -> tuple[WorkerProcess, tuple[int, int]]:
            process = fleet.start(cpus=size[0], resource=f"card={size[1]}", gpus="none")
            capacities[process.mark] = read_capacity(cpus=size[0], custom={"card": size[1]})
            return process, size

        team = [start(size) for size in sizes]
        began_s = time.monotonic()
        due = sorted(began_s + 3.0 + rng.uniform(2.0, 6.0) * n for n in range(n_kills))
        while not study.progress.is_done:
            if time.monotonic() - began_s > timeout_s:
                raise AssertionError(f"{study.counts}\n{fleet.output()[-4000:]}")
            if due and time.monotonic() > due[0]:
                due.pop(0)
                victim = rng.randrange(len(team))
                kills_s.append(time.time())
                team[victim][0].end()
                team[victim] = start(team[victim][1])
            time.sleep(0.2)
    facts = {"capacities": capacities, "slots": slots, "reserve_after_s": reserve_after_s}
    return _collect(storage, folder, kills_s, facts)


def _make_study(
    storage: str, folder: Path, n_trials: int, trial_s: tuple[float, float], rng: random.Random
) -> studydb.Study:
    study = studydb.create_study(
        "shared",
        "sharing:train",
        space={
            "folder": str(folder),
            "asked": studydb.choice(list(REQUESTS)),
            "seconds": studydb.uniform(*trial_s),
        },
        metric="loss",
        mode="min",
        num_trials=n_trials,
        searcher=None,
        workdir=TRAINABLES,
        max_losses=100,
        storage=storage,
    )
    for asked in rng.choices(REQUESTS, weights=WEIGHTS, k=n_trials):
        study.enqueue({"asked": asked}, resources=asked)
    return study


def _collect(storage: str, folder: Path, kills_s: list[float], facts: dict[str, Any]) -> Run:
    engine = sa.create_engine(storage.replace("postgresql://", "postgresql+psycopg://"))
    columns = (worker.c.id, worker.c.resources, worker.c.started_at)
    with engine.connect() as connection:
        zero_s = _first_start(connection)
        attempts = list(_attempts(connection, zero_s))
        rows = connection.execute(sa.select(*columns)).all()
    engine.dispose()
    last_s: dict[int, float] = defaultdict(float)
    for times in attempts:
        last_s[times.worker_id] = max(last_s[times.worker_id], times.end_s)
    return Run(
        spans=[span for path in (folder / "held").iterdir() for span in _spans(path)],
        attempts=attempts,
        offers={row.id: Capacity.from_json(row.resources) for row in rows},
        lives={row.id: (row.started_at.timestamp() - zero_s, last_s[row.id]) for row in rows},
        kills_s=[moment - zero_s for moment in kills_s],
        **facts,
    )


def _first_start(connection: Connection) -> float:
    return connection.execute(sa.select(sa.func.min(attempt.c.started_at))).scalar_one().timestamp()


def _attempts(connection: Connection, zero_s: float) -> Iterator[AttemptTimes]:
    rows = connection.execute(
        sa.select(
            trial.c.number,
            trial.c.resource_class,
            attempt.c.worker_id,
            attempt.c.started_at,
            attempt.c.ended_at,
        ).join(attempt, attempt.c.trial_id == trial.c.id)
    )
    for row in rows:
        yield AttemptTimes(
            row.number,
            row.resource_class,
            row.worker_id,
            row.started_at.timestamp() - zero_s,
            row.ended_at.timestamp() - zero_s,
        )


def _spans(path: Path) -> Iterator[Span]:
    """Read a file of `sharing.train`; trials whose processes had the same pid wrote to one file."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    for asked, group in itertools.groupby(lines, key=lambda line: (line["trial"], line["asked"])):
        times = [line["at"] for line in group]
        request = read_resources("asked", asked[1])
        yield Span(path.name.partition("-")[0], request, times[0], times[-1])
