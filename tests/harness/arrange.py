"""Makes studies, simulated workers and requests for tests; reads, changes and deletes rows."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from harness.asked_scheduler import sent
from studydb.db import Database
from studydb.db.metadata import METADATA
from studydb.domain.checkpoint import Checkpoint, CheckpointKind
from studydb.domain.errors import StorageTransient
from studydb.domain.life.decisions import Action, Answer
from studydb.domain.life.ending import Ending
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import FINAL, Mode, Reason, State
from studydb.domain.metrics import Result, Summary
from studydb.domain.objective import Objective
from studydb.domain.records import (
    Batch,
    Claim,
    Claimant,
    Lease,
    NewStudy,
    Process,
    Request,
    Study,
    TrialRow,
    renewal_s,
)
from studydb.domain.resources import Capacity
from studydb.domain.space.search_space import Space, loguniform
from studydb.domain.tally import Tally
from studydb.operations.ask import ask
from studydb.operations.claim import claim
from studydb.operations.control import pause
from studydb.operations.create import create
from studydb.operations.enqueue import enqueue
from studydb.operations.finish import finish
from studydb.operations.reads import list_trials
from studydb.operations.recover import recover
from studydb.operations.register import register
from studydb.operations.renew import Renewal, renew
from studydb.operations.report import report
from studydb.operations.save import save
from studydb.schedulers import FIFO
from studydb.searchers import RandomSearch
from studydb.store import results as store

LEASE_S = 90.0
RENEWAL_S = renewal_s(LEASE_S)

PERSON = "ada@laptop"

LOSS = Objective("loss", Mode.MIN)

Answered = TypeVar("Answered")


def token() -> str:
    return uuid4().hex


def new_request() -> Request:
    """A person's request that has not been sent yet."""
    return Request(token(), PERSON)


def new_spec(**overrides: Any) -> NewStudy:
    """A study for `create`: unless overridden, ten trials, FIFO, and a metric to minimise."""
    given = {
        "uuid": str(uuid4()),
        "name": f"study-{token()[:8]}",
        "objective": Objective(overrides.pop("metric", "loss"), overrides.pop("mode", Mode.MIN)),
        "seed": 0,
        "space": Space.read({"lr": loguniform(1e-4, 1.0), "epochs": 27}),
        "scheduler": FIFO(),
        "searcher": RandomSearch(seed=0),
        "num_trials": 10,
        "trainable": None,
        "created_by": PERSON,
    }
    return NewStudy(**(given | overrides))


def can_ask(spec: NewStudy | Study) -> bool:
    """Whether the study has a custom scheduler that this process can ask."""
    return getattr(spec.scheduler, "ask", None) is not None


def new_study(database: Database, **overrides: Any) -> Study:
    return created(database, new_spec(**overrides))


def created(database: Database, spec: NewStudy) -> Study:
    """
    Create a study.

    A custom scheduler and a resource function may have the attribute `ask`, a function that calls
    the user's code. The database does not store it, so the returned study gets such a scheduler or
    resource function from `spec`.
    """
    study = create(database, spec)
    if getattr(spec.resources, "ask", None) is not None:
        study = replace(study, resources=spec.resources)
    return replace(study, scheduler=spec.scheduler) if can_ask(spec) else study


def enqueued(database: Database, study: Study, **params: Any) -> int:
    """Enqueue a trial, and return its number."""
    return enqueue(database, study, params, new_request())


def results(
    *values: float, first: int = 1, done: bool = False, **metrics: Any
) -> tuple[Result, ...]:
    """Results of consecutive steps; if `done`, the last of them completes the trial."""
    last = first + len(values) - 1
    return tuple(
        Result(step, value, metrics, 0.5 * step, is_last=done and step == last)
        for step, value in enumerate(values, first)
    )


def process(pid: int = 1, **overrides: Any) -> Process:
    """A process of the host on which the simulated workers run."""
    given = {"host": "gpu1", "boot_id": "boot", "pid_namespace": "ns", "pid": pid, "started": 7}
    return Process(**(given | overrides))


def register_worker(
    database: Database,
    study: Study,
    *,
    uuid: str | None = None,
    of: Process | None = None,
    lease_s: float = LEASE_S,
    capacity: Capacity | None = None,
) -> int:
    """
    Register a worker of one slot; return its id.

    Without a capacity, the worker takes trials whatever resources they ask for.
    """
    given: Any = {"uuid": uuid or token(), "process": of or process(), "lease_s": lease_s}
    given |= {"capacity": capacity}
    return register(database, study, **given, slots=1, version="0")


class SimulatedWorker:
    """A worker without processes: it calls the operations as a worker would."""

    def __init__(
        self,
        database: Database,
        study: Study,
        *,
        lease_s: float = LEASE_S,
        of: Process | None = None,
    ) -> None:
        self.database, self.study, self.lease_s = database, study, lease_s
        self.id = register_worker(database, study, of=of, lease_s=lease_s)

    def claimant(self, token_: str | None = None) -> Claimant:
        return Claimant(self.id, token_ or token(), self.lease_s)

    def claim(self, token_: str | None = None) -> "Run | None":
        return self._run(claim, token_)

    def ask(self, token_: str | None = None) -> "Run | None":
        return self._run(ask, token_)

    def acquire(self) -> "Run | None":
        return self.claim() or self.ask()

    def take(self) -> "Run":
        run = self.acquire()
        assert run is not None
        return run

    def wait_at_the_rung(self, *values: float) -> None:
        """Let new trials report one value each and pause at the first rung."""
        for value in values:
            run = self.ask()
            assert run is not None
            run.pause(value)

    def renew(self, *runs: "Run") -> Renewal:
        return renew(self.database, self.study, worker_id=self.id, held=[run.lease for run in runs])

    def _run(self, operation: Callable[..., Claim | None], token_: str | None) -> "Run | None":
        claimed = operation(self.database, self.study, self.claimant(token_))
        return None if claimed is None else Run(self, claimed)


class Run:
    """
    An attempt of a simulated worker, and what the attempt has sent.

    Attributes:
        last: The last batch that `send` has sent. `finish` does not change it.
    """

    def __init__(self, worker: SimulatedWorker, claimed: Claim) -> None:
        self.worker, self.claimed = worker, claimed
        self.flush_no = 0
        self.last: Batch | None = None
        self.after_step = claimed.checkpoint.step if claimed.checkpoint else 0
        self.summary = Summary() if claimed.lease.attempt == 1 else None
        self.tally = Tally(worker.study.objective.metric)

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    def batch(self, *values: float, first: int | None = None, **more: Any) -> Batch:
        """The next batch; its steps begin with `first`, by default with the next step."""
        rows = results(*values, first=first or self.after_step + 1, **more)
        return Batch(self.flush_no + 1, rows, self.after_step, self.summary)

    def send(self, batch: Batch) -> Answer:
        database, study = self.worker.database, self.worker.study
        answer = sent(
            study, lambda whole: report(database, study, lease=self.lease, batch=whole), batch
        )
        self.flush_no, self.summary, self.last = batch.flush_no, answer.summary, batch
        self.tally.add(batch.results)
        if batch.results:
            self.after_step = batch.results[-1].step
        return answer

    def report(self, *values: float, first: int | None = None, **more: Any) -> Answer:
        return self.send(self.batch(*values, first=first, **more))

    def finish(
        self,
        *values: float,
        outcome: Reason = Reason.COMPLETED,
        done: bool = False,
        **more: Any,
    ) -> Ending | None:
        study = self.worker.study
        call = partial(finish, self.worker.database, study, lease=self.lease, outcome=outcome)
        return sent(
            study,
            lambda whole: call(batch=whole, tally=self.tally, **more),
            self.batch(*values, done=done),
        )

    def pause(self, *values: float, first: int | None = None) -> None:
        """Report values, and pause as the scheduler decides."""
        answer = self.report(*values, first=first)
        assert answer.verdict is not None
        assert answer.verdict.action is Action.PAUSE
        self.finish(outcome=Reason.PREEMPTED)

    def checkpoint(self, step: int | None = None) -> Checkpoint:
        return new_checkpoint(self.lease, step=self.after_step if step is None else step)

    def save(
        self, checkpoint: Checkpoint | None = None, keep: Keep | None = None
    ) -> list[Checkpoint]:
        study = self.worker.study
        return save(
            self.worker.database,
            lease=self.lease,
            checkpoint=checkpoint or self.checkpoint(),
            data=b"abc",
            keep=keep or study.keep,
            objective=study.objective,
        )

    def trial(self) -> TrialRow:
        return trial_of(self.worker.database, self.worker.study, self.lease.number)


def new_checkpoint(lease: Lease, *, step: int) -> Checkpoint:
    return Checkpoint(
        uuid=str(uuid4()),
        trial_id=lease.trial_id,
        attempt=lease.attempt,
        step=step,
        kind=CheckpointKind.DICT,
        url="inline:",
        digest="0" * 64,
        size_bytes=3,
    )


def trial_of(database: Database, study: Study, number: int) -> TrialRow:
    return next(one for one in list_trials(database, study) if one.number == number)


def states_of(database: Database, study: Study) -> list[State]:
    return [trial.state for trial in list_trials(database, study)]


def recover_after_expiry(
    clock: Any, database: Database, study: Study, *, lease_s: float = LEASE_S
) -> int:
    """Let all leases expire and recover the trials; return how many were recovered."""
    clock.advance(lease_s + 1)
    recover(database, study)
    clock.advance(renewal_s(lease_s) + 1)
    return recover(database, study)


def dump(database: Database, *, without: Sequence[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
    """
    Return the rows of the tables, as text, so that a test can compare two dumps.

    The table `proposal` is left out, because any ask may store proposals there.

    Args:
        without: Further tables that are left out.
    """
    columns = {
        table.name: [column.name for column in table.c]
        for table in METADATA.sorted_tables
        if table.name not in ("proposal", *without)
    }
    if not database.postgresql:
        return {
            name: sorted(
                tuple(map(str, row))
                for row in rows(database, f"SELECT {', '.join(of)} FROM {name}")
            )
            for name, of in columns.items()
        }
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in columns}
    selects = (
        f"SELECT '{name}', ARRAY[{', '.join(f'{column}::text' for column in of)}] FROM {name}"
        for name, of in columns.items()
    )
    for name, values in rows(database, f"{' UNION ALL '.join(selects)} ORDER BY 1, 2"):
        found[name].append(tuple(values))
    return found


@contextmanager
def unchanged_rows(database: Database, *, without: Sequence[str] = ()) -> Iterator[None]:
    before = dump(database, without=without)
    yield
    assert dump(database, without=without) == before


def rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    with database.begin(write=False) as txn:
        return txn.raw(sql)[1]


def change(database: Database, sql: str) -> None:
    """Change rows by SQL instead of by an operation."""
    with database.begin() as txn:
        txn.raw(sql)


def end_back_offs(database: Database) -> None:
    """End the back-off of all PENDING trials, so that they can be claimed."""
    change(database, "UPDATE trial SET ready = true, ready_at = NULL WHERE state = 'PENDING'")


def delete_all_rows(database: Database) -> None:
    """Empty all tables, so that the next dump is short; TRUNCATE is slower for a few rows."""
    with database.begin() as txn:
        # Tables refer to each other in circles, so no order of DELETEs keeps every foreign key.
        txn.run_text(
            "SET LOCAL session_replication_role = replica"
            if database.postgresql
            else "PRAGMA defer_foreign_keys = ON"
        )
        for name in METADATA.tables:
            txn.run_text(f"DELETE FROM {name}")


def leave_one_study(database: Database) -> None:
    """Delete all rows, then store a study that operations on other studies must not change."""
    delete_all_rows(database)
    study = new_study(database, name="bystander")
    enqueued(database, study)
    SimulatedWorker(database, study).ask().report(0.5)


def retry_while_busy(call: Callable[[], Answered], *, patience_s: float = 30.0) -> Answered:
    """Make a call; repeat it for up to `patience_s` while the database is busy or unreachable."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except StorageTransient:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)


def run_together(calls: Iterable[Callable[[], Answered]]) -> list[Answered]:
    """Run calls in threads that start together; return the answers in the order of the calls."""
    calls = list(calls)
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Answered]) -> Answered:
        gate.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls, timeout=60))


def moment(text: str) -> datetime:
    """Parse a time that `rows` has read from SQLite or PostgreSQL, and drop its time zone."""
    return datetime.fromisoformat(str(text)).replace(tzinfo=None)


def trial_in(database: Database, study: Study, state: State) -> TrialRow:
    """Make a trial, and bring it to a state by operations."""
    number = enqueued(database, study)
    if state is State.PAUSED:
        pause(database, study, [number], new_request())
    elif state is not State.PENDING:
        run = SimulatedWorker(database, study).claim()
        assert run is not None
        assert run.lease.number == number
        if state in FINAL:
            outcome = Reason.COMPLETED if state is State.TERMINATED else Reason.FAILED
            run.finish(0.5, outcome=outcome)
    trial = trial_of(database, study, number)
    assert trial.state is state
    return trial


def live_results(database: Database, study: Study, number: int) -> list[Result]:
    """The live results of a trial, in the order of steps."""
    with database.begin(write=False) as txn:
        trial_id = trial_of(database, study, number).id
        spans = store.spans(txn, study_id=study.id, trial_id=trial_id)
        rows = [row for span in spans for row in store.page(txn, span, limit=1_000_000)]
    return [store.read(row) for row in rows]
