"""The user's handle on a study: create, load, look, steer, run."""

import dataclasses
import getpass
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from studydb.artifacts import open_store
from studydb.child.process import is_alive, this_process
from studydb.db import Database, connect, migrate
from studydb.domain.errors import (
    InvalidSpec,
    NoResults,
    NotAllowed,
    StorageTransient,
    StudydbError,
    StudyExists,
    UnknownStudy,
)
from studydb.domain.names import check_metric_name, check_study_name
from studydb.domain.records import Counts, Trainable, Trial
from studydb.domain.records import Study as Record
from studydb.domain.rules import read_rules
from studydb.domain.space import Space
from studydb.domain.states import Mode, State, Status
from studydb.domain.view import Scheduler, Searcher
from studydb.lease.loop import OwnLoop
from studydb.lease.retries import persist
from studydb.lease.trial import Trial as HeldTrial
from studydb.operations import control, reading
from studydb.operations.create import NewStudy, create, load
from studydb.operations.delete import close, delete
from studydb.operations.look import Outlook, look
from studydb.operations.recover import recover, recover_host
from studydb.operations.rename import rename
from studydb.operations.revise import revise
from studydb.operations.views import drop_views
from studydb.schedulers import FIFO
from studydb.searchers import RandomSearch
from studydb.settings import load_keyring, storage_url
from studydb.trainables import describe, sign, signed_payload
from studydb.worker.places import remove_files
from studydb.worker.processes import WorkerProcesses

if TYPE_CHECKING:
    import pandas as pd

    from studydb.analysis.progress import Progress

CONTROL_PATIENCE_S = 10.0
"""A person waits for the database no longer than this."""

LOOK_S = 0.5
"""Between two looks of `Study.run`."""

GOING = "Waiting for the workers to save and give back their trials; Ctrl-C again kills them."

MAX_LOSSES = 10


Looked = TypeVar("Looked")
Made = TypeVar("Made")


class Study:
    """
    A study in a database; cheap to make, safe to share among threads.

    Attributes:
        record: The study's row with its specs, as it was when the handle was made.
    """

    def __init__(self, database: Database, record: Record) -> None:
        """Wrap a loaded study; made by `create_study` and `load_study`."""
        self.database, self.record = database, record
        self._loop: OwnLoop | None = None
        self._opening = threading.Lock()

    @property
    def name(self) -> str:
        """The study's name."""
        return self.record.name

    @property
    def storage(self) -> str:
        """The database's URL, its password masked."""
        return self.database.url

    @property
    def trials(self) -> list[Trial]:
        """All trials by number, as frozen records."""
        return self._read(reading.list_trials)

    @property
    def best_trial(self) -> Trial:
        """
        The trial with the best `best_value`: over all trials that have one, over their live steps.

        NaN never wins; ties go to the lower number.

        Raises:
            NoResults: No trial has a value yet.
        """
        return self._read(reading.best_trials)[0]

    @property
    def best_params(self) -> Mapping[str, Any]:
        """The best trial's params."""
        return self.best_trial.params

    @property
    def best_value(self) -> float:
        """The best trial's `best_value`."""
        value = self.best_trial.best_value
        assert value is not None
        return value

    @property
    def outlook(self) -> Outlook:
        """Status, counts and what there is to do, in one look."""
        return self._read(look)

    @property
    def status(self) -> Status:
        """RUNNING, PAUSED, STOPPED, or FINISHED: budget spent, nothing PENDING or RUNNING."""
        return self.outlook.status

    @property
    def counts(self) -> Counts:
        """Trials by state."""
        return self.outlook.counts

    def trials_dataframe(self) -> "pd.DataFrame":
        """A row per trial: the columns of `v_trial`, with one per parameter."""
        from studydb.analysis.frames import trials_dataframe  # noqa: PLC0415  pandas is an extra

        return trials_dataframe(self.database, self.record)

    def results_dataframe(self) -> "pd.DataFrame":
        """A row per live result: the columns of `v_result`, with one per metric."""
        from studydb.analysis.frames import results_dataframe  # noqa: PLC0415  pandas is an extra

        return results_dataframe(self.database, self.record)

    def enqueue(self, params: Mapping[str, Any], *, priority: int = 0) -> int:
        """
        Add a PENDING trial with these params; what is missing is drawn from the space.

        Args:
            priority: Lower runs first.

        Returns:
            The trial's number.

        Raises:
            BudgetSpent: `num_trials` trials exist; `extend` makes room.
            InvalidSpec: A parameter that the space does not have, or a value outside it.
        """
        return int(self._ask_once(control.enqueue, params, priority=priority))

    def pause(self, *numbers: int) -> None:
        """Pause these trials, or with none the whole study: nothing more is claimed."""
        self._steer(control.pause, Status.PAUSED, numbers)

    def resume(self, *numbers: int) -> None:
        """Resume these trials, or with none the whole study."""
        self._steer(control.resume, Status.RUNNING, numbers)

    def stop(self, *numbers: int) -> None:
        """Stop these trials as CANCELLED, or with none the whole study."""
        self._steer(control.stop, Status.STOPPED, numbers)

    def extend(self, *, num_trials: int) -> int:
        """
        Raise the budget by so many trials; an already FINISHED study goes on.

        Returns:
            The new budget.
        """
        return int(self._ask_once(control.extend, by=num_trials))

    def rename(self, new_name: str) -> None:
        """
        Give the study another name; workers that run its trials go on undisturbed.

        Raises:
            InvalidName: The name is outside the rules.
            StudyExists: Another study has it.
        """
        self._ask_once(rename, new_name)
        self.record = dataclasses.replace(self.record, name=new_name)

    def ask(self, timeout: float | None = None) -> HeldTrial | None:
        """
        Claim a PENDING trial, else make a new one, to be run by this process.

        Waits while the study is paused or at `max_concurrent`.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Returns:
            None when the budget is spent and nothing is runnable, or the study is stopped.

        Raises:
            TimeoutError: Nothing came in time.
        """
        with self._opening:
            if self._loop is None or self._loop.is_foreign:
                self._loop = OwnLoop(self._secret_url, self.record)
        return self._loop.ask(timeout)

    def run(self, workers: int = 1) -> Counts:
        """
        Run the study with worker processes on this machine until it is done; progress is shown.

        Ctrl-C lets the workers give their trials back, and raises KeyboardInterrupt; a second one
        kills them. They end with this process, however that ends (on Linux).

        Returns:
            Trials by state; at once if the study is done or stopped.

        Raises:
            NotAllowed: The study has no trainable.
            StudydbError: All workers ended with an error; the message has one's last words.
        """
        if _count("workers", workers, least=1) is None or self.record.trainable is None:
            raise NotAllowed(
                f"Study {self.name!r} has no trainable for workers to run; use study.ask()."
            )
        from studydb.analysis.progress import Progress  # noqa: PLC0415  brings the display

        if (outlook := self.outlook).over:
            return outlook.counts
        progress = Progress(self.name, self.record.metric, self.record.mode)
        team = WorkerProcesses(storage=self._secret_url, study=self.name, workers=workers)
        with progress, team:
            try:
                self._watch(team, progress)
            except KeyboardInterrupt:
                progress.tell(GOING)
                raise
        counts = self.counts
        if counts.error:
            progress.tell(self._describe_errors(counts.error))
        return counts

    def _watch(self, team: WorkerProcesses, progress: "Progress") -> None:
        began_s = time.monotonic()
        while team.alive:
            with suppress(StorageTransient):  # the workers wait for the database, so do we
                progress.update(self.counts, self._best_value(), time.monotonic() - began_s)
            time.sleep(LOOK_S)
        if team.failed is not None and not self._is_over():
            raise StudydbError(
                f"All workers of {self.name!r} have ended before it was done; what they had saved "
                f"is kept, and running it again goes on from there. The cause: {team.failed}"
            )
        progress.update(self.counts, self._best_value(), time.monotonic() - began_s)

    def _describe_errors(self, n_errors: int) -> str:
        first = reading.list_trials(self.database, self.record, state=State.ERROR, limit=1)[0]
        last = reading.details(self.database, self.record, first.number).attempts[-1]
        why = f"{last.error_type or last.reason}: {last.error_message or ''}".splitlines()[0]
        return (
            f"{n_errors} of {self.name!r} ended with an error, trial {first.number} with {why}\n"
            f"The traceback: studydb show {shlex.quote(self.name)} {first.number}"
        )

    def _is_over(self) -> bool:
        try:
            return self.outlook.over
        except StorageTransient:
            return False

    def _best_value(self) -> float | None:
        try:
            return self.best_value
        except NoResults:
            return None

    @property
    def _secret_url(self) -> str:
        return self.database.secret_url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Give back what own loops hold and close the connections."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self.database.close()

    def _read(self, operation: Callable[[Database, Record], Looked]) -> Looked:
        return persist(lambda: operation(self.database, self.record), patience_s=CONTROL_PATIENCE_S)

    def _steer(
        self, of_trials: Callable[..., None], of_study: Status, numbers: tuple[int, ...]
    ) -> None:
        if numbers:
            self._ask_once(of_trials, numbers)
        else:
            self._ask_once(control.set_status, of_study)

    def _ask_once(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        token = uuid4().hex
        return persist(
            lambda: operation(
                self.database, self.record, *args, token=token, actor=whoami(), **options
            ),
            patience_s=CONTROL_PATIENCE_S,
        )

    def __repr__(self) -> str:
        """Name and database."""
        return f"<Study {self.name!r} in {self.storage}>"


def whoami() -> str:
    """The actor of a person's requests: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def create_study(
    name: str,
    trainable: Callable[..., Any] | str | None,
    *,
    metric: str,
    mode: str,
    space: Mapping[str, Any] | None = None,
    num_trials: int | None = None,
    max_concurrent: int | None = None,
    scheduler: Scheduler | None = None,
    searcher: Searcher | None = None,
    stop: Mapping[str, Any] | Iterable[str] | None = None,
    max_failures: int = 0,
    max_losses: int = MAX_LOSSES,
    checkpoints: str | None = None,
    storage: str | None = None,
    load_if_exists: bool = False,
    workdir: str | Path | None = None,
) -> Study:
    """
    Create a study; an SQLite database is made when missing.

    Args:
        name: 1 to 200 printable characters, without "/".
        trainable: A function, or "module:function"; None for an own loop with `ask`.
        metric: What trials report and are compared by; nested names joined by "/".
        mode: "min" or "max".
        space: A nested dict of distributions and constants.
        num_trials: How many trials there may ever be; None for endless (a grid: its size).
        max_concurrent: How many may run at once, over all workers.
        stop: {"loss": 3} stops a trial at >=; or texts, such as ["loss>=3", "error<=0.01"].
        max_failures: Exceptions that a trial survives; -1 for ever.
        max_losses: Deaths without an exception that a trial survives between two checkpoints.
        checkpoints: URL or path of the store; None for the database's default.
        storage: The database's URL; None for $STUDYDB_STORAGE, else sqlite:///studydb.db.
        load_if_exists: Whether to go on with a study of this name; metric, mode and space must
            agree, and everything else stays as it was created.
        workdir: Where workers look for the trainable after their own; None for the current one.

    Raises:
        StudyExists: The name is taken.
        UsageError: An argument makes no sense; nothing was written.
        StorageError: The database needs attention.
    """
    new = _new_study(
        name=check_study_name(name),
        metric=check_metric_name(metric),
        mode=_read_mode(mode),
        space=Space.read(space),
        scheduler=_made("scheduler", scheduler, FIFO(), like="studydb.ASHA(max_t=27)"),
        searcher=_made("searcher", searcher, RandomSearch(), like="studydb.RandomSearch(seed=0)"),
        rules=read_rules(stop),
        num_trials=_count("num_trials", num_trials, least=1),
        max_concurrent=_count("max_concurrent", max_concurrent, least=1),
        max_failures=_count("max_failures", max_failures, least=-1) or 0,
        max_losses=_count("max_losses", max_losses, least=0) or 0,
        checkpoints=None if checkpoints is None else open_store(checkpoints).url,
        trainable=None if trainable is None else describe(trainable, workdir=workdir or Path.cwd()),
    )
    database = _open(storage, make=True)
    with _closed_on_error(database):
        try:
            record = persist(lambda: create(database, new), patience_s=CONTROL_PATIENCE_S)
        except StudyExists:
            if not load_if_exists:
                raise
            record = _revised(database, _same_study(load(database, name), new), new)
        return Study(database, record)


def _new_study(*, trainable: Trainable | None, searcher: Searcher, **columns: Any) -> NewStudy:
    uuid = str(uuid4())
    if trainable is not None:
        trainable = sign(trainable, uuid, load_keyring())
    searcher.size(columns["space"])  # refuse a grid that cannot be walked before making a file
    seed = secrets.randbelow(2**31) if searcher.seed is None else searcher.seed
    return NewStudy(
        uuid=uuid,
        seed=seed,
        searcher=searcher,
        trainable=trainable,
        created_by=whoami(),
        **columns,
    )


def _same_study(found: Record, new: NewStudy) -> Record:
    """Refuse to go on with a study that was created for something else."""
    for what, old, asked in (
        ("metric", found.metric, new.metric),
        ("mode", found.mode, new.mode),
        ("space", found.space, new.space),
        ("trainable", _name_of(found.trainable), _name_of(new.trainable)),
    ):
        if old != asked:
            raise StudyExists(
                f"Study {found.name!r} exists with another {what}: {old}, not {asked}. "
                "Choose another name, or ask for what it has."
            )
    return found


def _name_of(trainable: Trainable | None) -> str | None:
    return None if trainable is None else trainable.name


def _revised(database: Database, found: Record, new: NewStudy) -> Record:
    """
    Go on with the function as it is now, if it goes by value: who edits one means what it says.

    A colleague's is left as it was signed, or their own workers would refuse it.
    """
    old, asked = found.trainable, new.trainable
    if old is None or asked is None or (old.kind, old.source) == (asked.kind, asked.source):
        return found
    keyring = load_keyring()
    if not keyring.verify(signed_payload(old, found.uuid), old.signatures):
        return found
    signed = sign(dataclasses.replace(asked, signatures={}), found.uuid, keyring)
    token = uuid4().hex
    persist(
        lambda: revise(database, found, signed, token=token, actor=whoami()),
        patience_s=CONTROL_PATIENCE_S,
    )
    return dataclasses.replace(found, trainable=signed)


def load_study(name: str, *, storage: str | None = None) -> Study:
    """
    Load a study.

    Raises:
        UnknownStudy: No study of that name.
        StorageError: The database needs attention.
    """
    database = _open(storage, make=False)
    with _closed_on_error(database):
        return Study(database, persist(lambda: load(database, name), patience_s=CONTROL_PATIENCE_S))


def delete_study(name: str, *, storage: str | None = None, missing_ok: bool = False) -> None:
    """
    Delete a study: trials, results, checkpoints with their bytes, and its output on this host.

    Raises:
        UnknownStudy: No study of that name.
        NotAllowed: Trials are running.
        CheckpointError: The bytes of its checkpoints cannot be removed; its rows are still there.
    """
    database = _open(storage, make=False)
    try:
        _delete(database, load(database, name))
    except UnknownStudy:
        if not missing_ok:
            raise
    finally:
        database.close()


def _delete(database: Database, study: Record) -> None:
    """Rows last: as long as they are there, the same call finds what else is to go."""
    recover_host(database, study, process=this_process(), is_alive=is_alive)
    recover(database, study)
    close(database, study)
    drop_views(database, study)
    remove_files(database, study)
    delete(database, study)


@contextmanager
def _closed_on_error(database: Database) -> Iterator[None]:
    try:
        yield
    except BaseException:
        database.close()
        raise


def _open(storage: str | None, *, make: bool) -> Database:
    url = storage_url(storage)
    if make:
        migrate.make_embedded(url)
    return connect(url)


def _read_mode(mode: str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise InvalidSpec(f"mode is {mode!r}; it is 'min' or 'max'.") from None


def _made(name: str, given: Made | None, default: Made, *, like: str) -> Made:
    if given is None:
        return default
    if isinstance(given, type) or not hasattr(given, "to_json"):
        raise InvalidSpec(f"{name} is {given!r}; give an object, such as {like}.")
    return given


def _count(name: str, value: int | None, *, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidSpec(f"{name} is {value!r}; it must be an integer of {least} or more.")
    return value
