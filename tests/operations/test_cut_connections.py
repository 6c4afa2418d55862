"""
A call is repeated after its connection was severed or its process was killed at a COMMIT.

"before": the COMMIT is not carried out. "after": it is carried out, but the caller gets no reply.
An undisturbed call gives the first answer, and a duplicate of that call gives the second answer.

The repeated call must leave the same rows as an undisturbed call. After a severed connection, the
repeated call must give the first answer if the interrupted call had changed nothing, and the second
answer if not. After a kill, it must give the first answer at "before", and the second at "after".
"""

import functools
import importlib
import inspect
import itertools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from harness import postgres
from harness.arrange import delete_all_rows, dump, retry_while_busy, rows
from harness.crash_target import OPERATIONS, POINTS, advance, arranged_in, file_of, stopped
from harness.proxy import IDLE, Proxy
from harness.snapshot import take_snapshot

from studydb import operations
from studydb.db import Database, connect, wide_view_sql
from studydb.domain.errors import StorageTransient
from studydb.operations.create import load

every_operation = pytest.mark.parametrize("operation", OPERATIONS)

SKIPPING_LOCKED_ROWS = (
    *("claim", "claim_with_max_concurrent", "claim_from_a_checkpoint", "claim_or_ask"),
    "claim_without_a_config",
    *("recover", "recover_host", "resume_the_study", "give_up", "promote_from_a_rung_that_closes"),
    *("promote_the_chosen_trial", "promote_by_a_custom_scheduler"),
)
"""Operations that skip the rows that an earlier send still locks, and take other rows."""

PATIENCE_S = 60.0

OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND datname = current_database()
        AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""


@dataclass
class Side:
    """A database, and two ways to it: `database` goes through the proxy, `direct` does not."""

    proxy: Proxy
    database: Database
    direct: Database

    def arrange(self, operation):
        """
        Empty the database, and arrange a call; return the call.

        The connection through the proxy is new: no earlier call has prepared statements on it.
        """
        with self.direct.begin() as txn:
            wide_view_sql.drop(txn, wide_view_sql.found(txn))
        delete_all_rows(self.direct)
        call = arranged_in(self.direct, operation)
        self.database.close()
        advance(self.database, 0)
        assert rows(self.database, "SELECT 1") == [(1,)]
        return call


@pytest.fixture(scope="module")
def sides(postgres_server, postgres_template):
    """Two equal databases; only connections to the second are cut."""
    with ExitStack() as stack:
        sides = []
        for _ in range(2):
            url = stack.enter_context(
                postgres.temporary_database(postgres_server, template=postgres_template)
            )
            proxy = stack.enter_context(Proxy(url))
            ways = (stack.enter_context(closing(connect(to))) for to in (proxy.url(), url))
            sides.append(Side(proxy, *ways))
        yield sides


@pytest.fixture(scope="module")
def killed_processes(sqlite_template, tmp_path_factory):
    """
    A folder, and a function that kills processes at each COMMIT of an operation.

    The function leaves their databases in the folder, and returns the number of COMMITs.
    """
    folder = tmp_path_factory.mktemp("killed")
    forks = subprocess.Popen(
        [sys.executable, "-m", "harness.crash_target", sqlite_template, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def kill(operation):
        forks.stdin.write(f"{operation}\n")
        forks.stdin.flush()
        return int(forks.stdout.readline())

    with forks:
        yield folder, kill
        forks.stdin.close()


@pytest.mark.sampled(8)
@every_operation
def test_call_can_be_repeated_after_its_connection_is_severed(sides, subtests, operation):
    whole, cut = sides
    undisturbed = Rehearsal.of(operation, whole)
    ends = undisturbed.ends
    assert ends

    for point, nth in itertools.product(POINTS, range(len(ends))):
        call = cut.arrange(operation)
        before = everything(cut.direct)
        cut.proxy.cut(point, exchange=ends[nth])
        with pytest.raises(StorageTransient):
            call(cut.database)
        assert cut.proxy.was_cut
        is_unchanged = everything(cut.direct) == before
        if operation in SKIPPING_LOCKED_ROWS:
            await_no_open_transaction(cut.direct)
        answer = retry_while_busy(functools.partial(call, cut.database), patience_s=PATIENCE_S)
        left = all_rows(cut.direct)

        with subtests.test(point=point, nth=nth):
            if point == "before" and nth == 0:
                assert is_unchanged
            if point == "after" and ends[nth] == ends[-1] and undisturbed.has_changed:
                assert not is_unchanged
            expected = undisturbed.first if is_unchanged else undisturbed.second
            # `register` returns only an id, which is not compared.
            assert operation == "register" or without_ids(answer) == without_ids(expected)
            assert left == undisturbed.left


def await_no_open_transaction(database):
    """Wait until the server has ended the severed client's transaction, so that none is open."""
    deadline = time.monotonic() + PATIENCE_S
    while rows(database, OPEN_TRANSACTIONS) != [(0,)]:
        assert time.monotonic() < deadline


@dataclass
class Rehearsal:
    """
    An undisturbed call that was made twice.

    Attributes:
        first, second: The answers of the two calls.
        ends: The numbers of the exchanges (`harness.proxy`) by which the first call ended a
            transaction.
        left: The rows after the first call.
        has_changed: Whether the first call changed rows.
    """

    first: Any
    second: Any
    ends: list[int]
    left: Any
    has_changed: bool

    @classmethod
    def of(cls, operation, side):
        call = side.arrange(operation)
        before = everything(side.direct)
        side.proxy.listen()
        first = call(side.database)
        ends = [place for place, status in enumerate(side.proxy.statuses, 1) if status == IDLE]
        left, has_changed = all_rows(side.direct), everything(side.direct) != before
        return cls(first, call(side.database), ends, left, has_changed)


@pytest.mark.sampled(8)
@every_operation
def test_another_process_can_repeat_the_call_of_a_process_killed_at_a_commit(
    killed_processes, sqlite_template, tmp_path, subtests, operation
):
    folder, kill = killed_processes
    n_commits = kill(operation)
    assert n_commits > 0
    with stopped(shutil.copyfile(sqlite_template, tmp_path / "whole.db")) as whole:
        call = arranged_in(whole, operation)
        first, second = call(whole), call(whole)
        left = all_rows(whole)

    for point, nth in itertools.product(POINTS, range(1, n_commits + 1)):
        with stopped(file_of(folder, operation, point, nth)) as left_behind:
            answer, found = call(left_behind), all_rows(left_behind)

        with subtests.test(point=point, nth=nth):
            assert answer == (first if point == "before" else second)
            assert found == left


@pytest.mark.slow
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
    """Whether a module or function begins transactions, and all of them are read-only."""
    begun = re.findall(r"\bdatabase\.begin\((.*?)\)", inspect.getsource(of))
    return bool(begun) and all("write=False" in given for given in begun)


def code_run_by(operation, template, folder):
    """Call an operation; return the code objects of all functions that ran."""
    run = set()
    with stopped(shutil.copyfile(template, folder / f"{operation}.db")) as database:
        call = arranged_in(database, operation)
        sys.setprofile(lambda frame, *_: run.add(frame.f_code))
        try:
            call(database)
        finally:
            sys.setprofile(None)
    return run


def everything(database):
    """Read the rows that `dump` returns, and the names of all wide views."""
    with database.begin(write=False) as txn:
        made = sorted(view.name for view in wide_view_sql.found(txn))
    return dump(database) | {"views": made}


def all_rows(database):
    """Read the rows of all studies without ids, and the columns of their wide views."""
    with database.begin(write=False) as txn:
        names = txn.raw("SELECT name FROM study ORDER BY id")[1]
        made = [view.columns for view in wide_view_sql.found(txn)]
    return [take_snapshot(database, load(database, name)) for (name,) in names], made


def without_ids(answer):
    """Write an answer as a text without the ids, which differ between two databases."""
    return re.sub(r"\b((study_|trial_|worker_|)id)=\d+", r"\1", repr(answer))
