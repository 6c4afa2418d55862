"""Fixtures of the conformance suite. A file's tests share a database; each makes new studies."""

import shutil
from contextlib import closing

import pytest
from harness import postgres

from studydb import schedulers
from studydb.db import connect


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def storage_url(request, tmp_path_factory):
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("conformance") / "studydb.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgres_server")
    template = request.getfixturevalue("postgres_template")
    with postgres.temporary_database(server, template=template) as url:
        yield url


@pytest.fixture(scope="module")
def connected(storage_url):
    with closing(connect(storage_url)) as database:
        yield database


@pytest.fixture
def database(connected):
    connected.clock = None
    return connected


@pytest.fixture
def registered(monkeypatch):
    """Return a function that lets studies use a scheduler that is not in `BY_NAME`."""

    def register(scheduler):
        monkeypatch.setitem(schedulers.BY_NAME, scheduler.kind, type(scheduler))
        return scheduler

    return register
