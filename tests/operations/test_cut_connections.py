"""
A call is repeated after its connection was severed or its process was killed at a COMMIT.

"before": the COMMIT is not carried out. "after": it is carried out, but the caller gets no reply.
The repeated call must leave the same rows as an undisturbed call, and give the same answer.
"""

import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import pytest
from harness import postgres
from harness.arrange import dump, retry_while_busy, rows
from harness.crash_target import OPERATIONS, POINTS, advance, arranged_in, file_of
from harness.proxy import IDLE, Proxy
from harness.snapshot import take_snapshot

from studydb import operations
from studydb.db import Database, connect, wide_view_sql
from studydb.db.metadata import METADATA
from studydb.domain.errors import StorageTransient
from studydb.operations.create import load

every_operation = pytest.mark.parametrize("operation", OPERATIONS)
at_every_point = pytest.mark.parametrize("point", POINTS)

SKIPPING_LOCKED_ROWS = (
    *("claim", "claim_with_max_concurrent", "claim_from_a_checkpoint", "claim_or_ask"),
    "claim_without_a_config",
    *("recover", "recover_host", "resume_the_study", "give_up", "promote_from_a_rung_that_closes"),
)
"""Operations that skip the rows that an earlier send still locks, and take other rows."""

PATIENCE_S = 60.0

OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND datname = current_database()
        AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""


@dataclass
class Side:
    proxy: Proxy
    database: Database

    def freshly_connected(self):
        """Read every row over a new connection, on which no statement is prepared."""
        self.database.close()
        return everything(self.database)


@pytest.fixture(scope="module")
def connected_sides(postgres_server, postgres_template):
    """Two equal databases; only connections to the second are cut."""
    with ExitStack() as stack:
        sides = []
        for _ in range(2):
            database = postgres.temporary_database(postgres_server, template=postgres_template)
            proxy = stack.enter_context(Proxy(stack.enter_context(database)))
            sides.append(Side(proxy, stack.enter_context(closing(connect(proxy.url())))))
        yield sides


@pytest.fixture
def sides(connected_sides):
    """The two databases, emptied, because a test reads all rows several times."""
    for side in connected_sides:
        with side.database.begin() as txn:
            wide_view_sql.drop(txn, wide_view_sql.found(txn))
            txn.run_text(f"TRUNCATE {', '.join(METADATA.tables)}")
    return connected_sides


@pytest.fixture(scope="module")
def killed_processes(sqlite_template, tmp_path_factory):
    """A folder for databases, and a function that kills a process at each COMMIT of a call."""
    folder = tmp_path_factory.mktemp("killed")
    forks = subprocess.Popen(
        [sys.executable, "-m", "harness.crash_target", sqlite_template, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def kill(operation, point):
        forks.stdin.write(f"{operation} {point}\n")
        forks.stdin.flush()
        return json.loads(forks.stdout.readline())

    with forks:
        yield folder, kill
        forks.stdin.close()


@at_every_point
@every_operation
def test_call_whose_connection_is_severed_can_be_repeated(sides, operation, point):
    whole, cut = sides
    nth, n_ends = 0, 1
    while nth < n_ends:
        nth += 1
        seed = f"{point} {nth}"
        first, second, left, ends, has_changed = rehearsed(whole, operation, seed)
        n_ends = len(ends)
        assert n_ends > 0
        since = newest_id(cut.database)
        call = arranged_in(cut.database, operation, seed=seed)
        before = cut.freshly_connected()

        cut.proxy.cut(point, exchange=ends[nth - 1])
        with pytest.raises(StorageTransient):
            call(cut.database)
        assert cut.proxy.was_cut
        is_unchanged = everything(cut.database) == before
        if operation in SKIPPING_LOCKED_ROWS:
            await_no_open_transaction(cut.database)
        answer = retry_while_busy(functools.partial(call, cut.database), patience_s=PATIENCE_S)

        if point == "before" and nth == 1:
            assert is_unchanged
        if point == "after" and nth == len(ends) and has_changed:
            assert not is_unchanged
        expected = first if is_unchanged else second
        # `register` returns only an id.
        assert operation == "register" or without_ids(answer) == without_ids(expected)
        assert rows_since(cut.database, since) == left


def await_no_open_transaction(database):
    """Wait until the server has rolled back the transaction of the severed client."""
    deadline = time.monotonic() + PATIENCE_S
    while rows(database, OPEN_TRANSACTIONS) != [(0,)]:
        assert time.monotonic() < deadline


def rehearsed(side, operation, seed):
    """
    Make an undisturbed call twice.

    Returns:
        The answers of both calls; the rows after the first call; the numbers of the exchanges
        (`harness.proxy`) by which the first call ended a transaction; and whether it changed rows.
    """
    since = newest_id(side.database)
    call = arranged_in(side.database, operation, seed=seed)
    before = side.freshly_connected()
    side.proxy.listen()
    first = call(side.database)
    statuses, left = side.proxy.statuses, rows_since(side.database, since)
    ends = [place for place, status in enumerate(statuses, 1) if status == IDLE]
    has_changed = everything(side.database) != before
    return first, call(side.database), left, ends, has_changed


@at_every_point
@every_operation
def test_call_of_a_process_killed_at_a_commit_can_be_repeated_by_another_process(
    killed_processes, sqlite_template, tmp_path, operation, point
):
    folder, kill = killed_processes
    places = kill(operation, point)
    assert places
    for nth in places:
        whole = shutil.copyfile(sqlite_template, tmp_path / f"{nth}.db")
        with opened(whole) as twin:
            call = arranged_in(twin, operation)
            with opened(file_of(folder, operation, point, nth)) as left_behind:
                answer = call(left_behind)
                found = rows_since(left_behind, 0)
            first, second = call(twin), call(twin)

            assert answer == (first if point == "before" else second)
            assert found == rows_since(twin, 0)


def test_every_operation_that_writes_is_tested_with_cut_connections(sqlite_template, tmp_path):
    run = {name: code_run_by(name, sqlite_template, tmp_path) for name in OPERATIONS}
    cut = frozenset().union(*run.values())
    without_one = frozenset().union(
        *(codes for name, codes in run.items() if name != "record_event")
    )

    assert [name for name, code in writers() if code not in cut] == []
    # The test would find `record_event` if this operation were not in OPERATIONS.
    assert [name for name, code in writers() if code not in without_one] == [
        "record_event.record_event"
    ]


def writers():
    """Yield the name and code object of each public operation that may change the database."""
    for found in pkgutil.iter_modules(operations.__path__):
        module = importlib.import_module(f"{operations.__name__}.{found.name}")
        if only_reads(module):
            continue
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = next(iter(inspect.signature(function).parameters), None)
            is_here = function.__module__ == module.__name__ and not name.startswith("_")
            if is_here and takes == "database" and not only_reads(function):
                yield f"{found.name}.{name}", function.__code__


def only_reads(of):
    """Whether all transactions that a module or function begins are read-only."""
    begun = re.findall(r"\bdatabase\.begin\((.*?)\)", inspect.getsource(of))
    return bool(begun) and all("write=False" in given for given in begun)


def code_run_by(operation, template, folder):
    """Call an operation; return the code objects of all functions that ran."""
    run = set()
    with opened(shutil.copyfile(template, folder / f"{operation}.db")) as database:
        call = arranged_in(database, operation)
        sys.setprofile(lambda frame, *_: run.add(frame.f_code))
        try:
            call(database)
        finally:
            sys.setprofile(None)
    return run


def everything(database):
    """Read all rows, and the names of all wide views."""
    with database.begin(write=False) as txn:
        made = sorted(view.name for view in wide_view_sql.found(txn))
    return dump(database) | {"views": made}


def newest_id(database):
    with database.begin(write=False) as txn:
        return txn.raw("SELECT coalesce(max(id), 0) FROM study")[1][0][0]


def rows_since(database, study_id):
    """Read the rows of the studies with ids above `study_id`, and columns of their wide views."""
    with database.begin(write=False) as txn:
        names = txn.raw(f"SELECT name FROM study WHERE id > {study_id} ORDER BY id")[1]
        made = [view.columns for view in wide_view_sql.found(txn) if view.study_id > study_id]
    return [take_snapshot(database, load(database, name)) for (name,) in names], made


@contextmanager
def opened(path):
    database = connect(f"sqlite:///{path}")
    advance(database, 0)
    yield database
    database.close()


def without_ids(answer):
    """Write an answer as a text without the ids, which differ between two databases."""
    return re.sub(r"\b((study_|trial_|worker_|)id)=\d+", r"\1", repr(answer))
