"""Fixtures that run commands in this process, and that close study handles after the test."""

import csv
import io
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import studydb
from studydb.__main__ import main

Console = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def csv(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))

    @property
    def error(self) -> str:
        """The command's error, checked to be one line on stderr and the command's only output."""
        assert self.out == ""
        assert self.err.startswith("studydb: ")
        assert self.err.count("\n") == 1
        return self.err

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a new, empty folder; `sys.path` is restored after the test."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return folder


@pytest.fixture
def bare_console(here: Path, capsys: pytest.CaptureFixture[str]) -> Console:
    """Run commands and check their exit codes; the environment names no database."""

    def run(*arguments: str, code: int = 0) -> Ran:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        ran = Ran(int(exit_.value.code or 0), captured.out, captured.err)
        assert ran.code == code, ran
        return ran

    return run


@pytest.fixture
def console(bare_console: Console, storage_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Run commands on a new database with the newest schema, SQLite or PostgreSQL."""
    monkeypatch.setenv("STUDYDB_STORAGE", storage_url)
    return bare_console


@pytest.fixture
def handles():
    """Register study handles that are closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda handle: stack.enter_context(closing(handle))


@pytest.fixture
def create_study(handles):
    """Call `studydb.create_study`, by default for an own loop that minimises "loss"."""

    def create(name, trainable=None, **options):
        return handles(
            studydb.create_study(name, trainable, **({"metric": "loss", "mode": "min"} | options))
        )

    return create


@pytest.fixture(params=["folder", "inline"])
def place(request, tmp_path):
    """The store of checkpoints: a folder, or the database."""
    return "inline:" if request.param == "inline" else str(tmp_path / "store")


@pytest.fixture
def study(create_study, storage_url, place):
    """A study whose checkpoints are stored in `place`, for an own loop."""
    space = {"lr": studydb.uniform(0, 1)}
    return create_study("own", space=space, num_trials=9, storage=storage_url, checkpoints=place)


@pytest.fixture
def load_study(handles):
    return lambda name, storage: handles(studydb.load_study(name, storage=storage))
