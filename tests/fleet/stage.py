"""A study, its workers, and gates at which its trials wait for the test."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import sqlalchemy as sa

import studydb
from fleet.workers import TRAINABLES, Fleet, WorkerProcess, eventually
from studydb.cli.console import run
from studydb.db import Prepared
from studydb.db.schema import attempt, event, trial

LEASE_S = 5.0

# Tests read these rows every 20 ms while they wait. To compile a statement takes 8 ms of CPU time.
_TRIAL = Prepared(sa.select(trial).where(trial.c.number == sa.bindparam("number")))
_ATTEMPTS = Prepared(
    sa.select(attempt)
    .where(attempt.c.trial_id == sa.bindparam("trial_id"))
    .order_by(attempt.c.attempt)
)
_EVENTS = Prepared(
    sa.select(event).where(event.c.kind == sa.bindparam("kind")).order_by(event.c.id)
)


class Stage:
    """
    One study and its workers; leaving the `with` block kills all of their processes.

    Attributes:
        folder: The folder for gates and files of trainables; every config has it as "folder".
    """

    def __init__(self, storage: str, folder: Path) -> None:
        self.storage, self.folder = storage, folder
        self._study: studydb.Study | None = None
        self._fleet: Fleet | None = None

    @property
    def study(self) -> studydb.Study:
        assert self._study is not None, "call `create` first"
        return self._study

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None, "call `create` first"
        return self._fleet

    def create(self, trainable: str, **options: Any) -> studydb.Study:
        """Create the study, by default with one trial."""
        space = {"x": 0.25, "folder": str(self.folder), **options.pop("space", {})}
        given = {"metric": "loss", "mode": "min", "num_trials": 1, "workdir": TRAINABLES}
        self._study = studydb.create_study(
            "staged", trainable, space=space, storage=self.storage, **(given | options)
        )
        self._fleet = Fleet(
            self.storage, self._study.name, self.folder, preloaded=True, lease=LEASE_S
        )
        return self._study

    def start(self, **options: Any) -> WorkerProcess:
        return self.fleet.start(**options)

    def run(self, **options: Any) -> int:
        return self.start(**options).exit_code(60.0)

    def open_gate(self, step: int | str) -> None:
        """Open the gate of a step, or a gate by its name; "all" opens the gates of all steps."""
        (self.folder / f"gate-{step}").touch()

    def trial(self, number: int = 0) -> Any:
        (found,) = self._read(_TRIAL, number=number)
        return found

    def expect_released(self, number: int = 0) -> Any:
        """Check that a trial is PENDING without failures or losses; return its row."""
        row = self.trial(number)
        assert (row.state, row.failures, row.losses) == ("PENDING", 0, 0)
        return row

    def attempts(self, number: int = 0) -> list[Any]:
        return self._read(_ATTEMPTS, trial_id=self.trial(number).id)

    def events(self, kind: str) -> list[Any]:
        return [row.data for row in self._read(_EVENTS, kind=kind)]

    def row(self, table: sa.Table, *conditions: Any) -> Any:
        """The one row of a table that meets the conditions."""
        (found,) = self.rows(table, *conditions)
        return found

    def rows(self, table: sa.Table, *conditions: Any, order: Any = None) -> list[Any]:
        return self._read(sa.select(table).where(*conditions).order_by(order))

    def _read(self, statement: Prepared | sa.Executable, **params: Any) -> list[Any]:
        with self.study.database.begin(write=False) as txn:
            return txn.all(statement, **params)

    def steps(self, number: int = 0) -> list[int]:
        view = sa.table("v_result", sa.column("number"), sa.column("step", sa.BigInteger))
        return [row.step for row in self.rows(view, view.c.number == number, order=view.c.step)]

    def await_trial(
        self, condition: Callable[[Any], bool], number: int = 0, timeout_s: float = 30.0
    ) -> Any:
        """Wait until a trial's row meets the condition; return the row."""

        def found() -> Any:
            rows = self._read(_TRIAL, number=number)
            return rows[0] if rows and condition(rows[0]) else None

        return eventually(found, timeout_s, what=f"the awaited change of trial {number}")

    def await_state(self, state: str, number: int = 0, timeout_s: float = 30.0) -> Any:
        return self.await_trial(lambda row: row.state == state, number, timeout_s)

    def await_result(self, number: int = 0) -> Any:
        return self.await_trial(lambda row: row.n_results > 0, number)

    def command(self, *arguments: str) -> str:
        """Run a studydb command in this process; return what it printed."""
        variables, printed = {"STUDYDB_STORAGE": self.storage, "COLUMNS": "200"}, io.BytesIO()
        stream = io.TextIOWrapper(printed, write_through=True)
        with patch.dict(os.environ, variables), redirect_stdout(stream), redirect_stderr(stream):
            code = run(arguments)
        text = printed.getvalue().decode()
        assert code == 0, text
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fleet is not None:
            self._fleet.__exit__()
        if self._study is not None:
            self._study.close()
