"""A study on a fresh database, its workers, and gates that hold its trainables where a test wants."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

import studydb
from fleet.workers import TRAINABLES, Fleet, WorkerProcess, eventually
from studydb.db.schema import attempt, event, trial

LEASE_S = 5.0


class Stage:
    """
    One study and its workers; leaving the `with` block leaves no process behind.

    Attributes:
        folder: Where trainables and test meet; in every config under this name.
    """

    def __init__(self, storage: str, folder: Path) -> None:
        self.storage, self.folder = storage, folder
        self._study: studydb.Study | None = None
        self._fleet: Fleet | None = None

    @property
    def study(self) -> studydb.Study:
        assert self._study is not None, "create comes first"
        return self._study

    @property
    def fleet(self) -> Fleet:
        assert self._fleet is not None, "create comes first"
        return self._fleet

    def create(self, trainable: str, **options: Any) -> studydb.Study:
        """Create the study: one trial by default."""
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
        """Start a worker by the command line."""
        return self.fleet.start(**options)

    def run(self, **options: Any) -> int:
        """Have a worker work until the study is over; its exit code."""
        return self.start(**options).exit_code(60.0)

    def open(self, step: int | str) -> None:
        """Let gated trainables pass a step; "all" for whatever comes."""
        (self.folder / f"gate-{step}").touch()

    def trial(self, number: int = 0) -> Any:
        """The row of a trial."""
        return self.row(trial, trial.c.number == number)

    def attempts(self, number: int = 0) -> list[Any]:
        """The rows of a trial's attempts."""
        of_trial = attempt.c.trial_id == self.trial(number).id
        return self.rows(attempt, of_trial, order=attempt.c.attempt)

    def events(self, kind: str) -> list[Any]:
        """The data of all events of a kind."""
        return [row.data for row in self.rows(event, event.c.kind == kind, order=event.c.id)]

    def row(self, table: sa.Table, *conditions: Any) -> Any:
        """The one row."""
        (found,) = self.rows(table, *conditions)
        return found

    def rows(self, table: sa.Table, *conditions: Any, order: Any = None) -> list[Any]:
        """Rows of a table, decoded."""
        with self.study.database.begin(write=False) as txn:
            return txn.all(sa.select(table).where(*conditions).order_by(order))

    def steps(self, number: int = 0) -> list[int]:
        """The live steps of a trial."""
        view = sa.table("v_result", sa.column("number"), sa.column("step", sa.BigInteger))
        return [row.step for row in self.rows(view, view.c.number == number, order=view.c.step)]

    def await_trial(
        self, condition: Callable[[Any], bool], number: int = 0, timeout_s: float = 30.0
    ) -> Any:
        """Wait for a trial to be in some condition; its row."""

        def found() -> Any:
            rows = self.rows(trial, trial.c.number == number)
            return rows[0] if rows and condition(rows[0]) else None

        return eventually(found, timeout_s, what=f"what was awaited of trial {number}")

    def await_state(self, state: str, number: int = 0, timeout_s: float = 30.0) -> Any:
        """Wait for a trial to be in a state; its row."""
        return self.await_trial(lambda row: row.state == state, number, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fleet is not None:
            self._fleet.__exit__(kind, error, trace)
        if self._study is not None:
            self._study.close()
