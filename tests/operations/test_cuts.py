"""
A connection severed, or a process killed, before each COMMIT and after it: the call is made again.

It leaves what a call that nothing happened to leaves, and is given the same answer.
"""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import postgres
import pytest
import resends
import victim
from arrange import dump, persist
from picture import picture
from proxy import Proxy
from victim import OPERATIONS, POINTS, advance, arranged_in, file_of

from studydb.db import Database, connect
from studydb.domain.errors import StorageTransient
from studydb.operations.create import load

every_operation = pytest.mark.parametrize("arranged", OPERATIONS, ids=lambda it: it.__name__)
at_every_point = pytest.mark.parametrize("point", POINTS)

ANSWER_IS_AN_ID = (resends.registering,)


@dataclass
class Sides:
    """Two databases alike: one behind a proxy, and one to which nothing happens."""

    proxy: Proxy
    cut: Database
    whole: Database


@pytest.fixture(scope="module")
def sides(postgres_server, postgres_template):
    names = [f"studydb_test_{uuid4().hex}" for _ in range(2)]
    urls = [
        postgres.create_database(postgres_server, name, template=postgres_template)
        for name in names
    ]
    with Proxy(urls[0]) as proxy:
        cut = connect(f"{proxy.url()}?pooler=transaction")  # what is one statement has a COMMIT
        whole = connect(urls[1])
        yield Sides(proxy, cut, whole)
        cut.close()
        whole.close()
    for name in names:
        postgres.drop_database(postgres_server, name)


@pytest.fixture(scope="module")
def graveyard(sqlite_template, tmp_path_factory):
    """Files in which processes were killed, and which of them were."""
    folder = tmp_path_factory.mktemp("victims")
    killed = subprocess.run(
        [sys.executable, victim.__file__, sqlite_template, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return folder, json.loads(killed.stdout)


@at_every_point
@every_operation
def test_call_whose_connection_is_severed_at_a_commit_can_be_made_again(sides, arranged, point):
    for nth in itertools.count(1):
        seed = f"{point} {nth}"
        first, second, left = made_twice(sides.whole, arranged, seed)
        call = arranged_in(sides.cut, arranged, seed=seed)
        before = dump(sides.cut)

        sides.proxy.cut(point, nth=nth)
        try:
            call(sides.cut)
        except StorageTransient:
            severed = dump(sides.cut)
        if not sides.proxy.was_cut:
            sides.proxy.cut(point, nth=0)
            break
        answer = persist(functools.partial(call, sides.cut))

        if seed == "before 1":
            assert severed == before
        awaited = first if point == "before" else second
        assert arranged in ANSWER_IS_AN_ID or without_ids(answer) == without_ids(awaited)
        assert newest(sides.cut) == left
    assert nth > 1


@at_every_point
@every_operation
def test_call_of_a_process_that_is_killed_at_a_commit_can_be_made_by_another(
    graveyard, sqlite_template, tmp_path, arranged, point
):
    folder, killed = graveyard
    places = [nth for when, nth in killed[arranged.__name__] if when == point]
    assert places
    for nth in places:
        whole = shutil.copyfile(sqlite_template, tmp_path / f"{nth}.db")
        with opened(whole) as twin:
            call = arranged_in(twin, arranged)
            with opened(file_of(folder, arranged.__name__, point, nth)) as left_behind:
                answer = call(left_behind)
                found = newest(left_behind)
            first, second = call(twin), call(twin)

            assert answer == (first if point == "before" else second)
            assert found == newest(twin)


def made_twice(database, arranged, seed):
    """Both answers of a call to which nothing happens, and what it leaves."""
    call = arranged_in(database, arranged, seed=seed)
    first = call(database)
    left = newest(database)
    return first, call(database), left


def newest(database):
    """What the rows of the last study say."""
    with database.begin(write=False) as txn:
        ((name,),) = txn.raw("SELECT name FROM study ORDER BY id DESC LIMIT 1")[1]
    return picture(database, load(database, name))


@contextmanager
def opened(path):
    database = connect(f"sqlite:///{path}")
    advance(database, 0)
    yield database
    database.close()


def without_ids(answer):
    """A text that is the same for two databases, whose sequences have not counted alike."""
    return re.sub(r"\b((study_|trial_|)id)=\d+", r"\1", repr(answer))
