"""The console as a test types it: in this process, with an exit code instead of an exit."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studydb.__main__ import main

Console = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return folder


@pytest.fixture
def bare_console(here: Path, capsys: pytest.CaptureFixture[str]) -> Console:
    """Run commands; no database is named."""

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
    """Run commands on a migrated database of either kind."""
    monkeypatch.setenv("STUDYDB_STORAGE", storage_url)
    return bare_console
