"""Fixtures: attempts in children, a slot with scripted children, and studies with real workers."""

import itertools
import stat
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fleet.stage import Stage
from harness.pickled import by_value
from harness.postgres import PostgresServer, create_database
from harness.supervised_slot import Supervised
from harness.warm_server import WarmServer

import studydb
from studydb.artifacts import INLINE, open_store
from studydb.child.job import Job, TrainableImport
from studydb.child.messages import (
    Answered,
    Began,
    Ended,
    FromChild,
    UploadAsked,
    read_from_child,
    write,
)
from studydb.db import Database, migrate
from studydb.domain.errors import CheckpointError
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.worker.attempt_output import AttemptOutput, OutputPump
from studydb.worker.children import ChildProcess
from studydb.worker.fork_server_client import ForkServer

PATIENCE_S = 20.0


@dataclass
class Attempt:
    child: ChildProcess
    output: AttemptOutput
    directory: Path
    workdir: Path

    def receive(self) -> FromChild:
        """
        Return the next message, but skip `Began` and `UploadAsked`; allow each upload.

        Of `Ended`, only `end` and `failure` are kept. Raises EOFError after the last message.
        """
        while True:
            frame = self.child.channel.receive(PATIENCE_S)
            assert frame is not None, "the child has sent nothing"
            message = read_from_child(frame)
            if isinstance(message, UploadAsked):
                self.answer(message)
                continue
            if isinstance(message, Ended):
                return Ended(message.end, message.failure)
            if not isinstance(message, Began):
                return message

    def allow_upload(self, **answer: Any) -> None:
        """Skip `Began`; receive a message, which must ask to begin an upload; answer it."""
        message: FromChild = Began(0.0)
        while isinstance(message, Began):
            frame = self.child.channel.receive(PATIENCE_S)
            assert frame is not None, "the child has sent nothing"
            message = read_from_child(frame)
        assert isinstance(message, UploadAsked), message
        self.answer(message, **answer)

    def answer(self, message: FromChild, **answer: Any) -> None:
        assert not isinstance(message, Ended)
        assert message.id is not None, f"the child does not wait for an answer to {message}"
        self.child.channel.send(write(Answered(message.id, **answer)))

    def finish(self) -> list[FromChild]:
        """Call `receive` until the child ends; return the messages; answer those with an id."""
        messages = []
        try:
            while True:
                messages.append(self.receive())
                if getattr(messages[-1], "id", None) is not None:
                    self.answer(messages[-1])
        except EOFError:
            self.close()
        return messages

    def close(self) -> None:
        assert self.child.wait(PATIENCE_S) is not None, "the child does not end"
        self.output.finish()
        self.child.channel.close()

    @property
    def printed(self) -> str:
        return self.output.tail().decode()


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def pump() -> Iterator[OutputPump]:
    pump = OutputPump()
    yield pump
    pump.close()


@pytest.fixture
def warm(fork_server: ForkServer, pump: OutputPump, tmp_path: Path) -> Iterator[WarmServer]:
    """Start attempts from templates: `start(…, server=warm)`."""
    warm = WarmServer(fork_server, pump, tmp_path)
    yield warm
    warm.templates.close()


Start = Callable[..., Attempt]


@pytest.fixture
def module(tmp_path: Path) -> Callable[..., Trainable]:
    """Return a function that writes a module and returns the module's `train` as a trainable."""

    def write(source: str, name: str = "mine") -> Trainable:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return Trainable("u", TrainableKind.IMPORT, f"{name}:train", str(tmp_path), "3.11")

    return write


@pytest.fixture
def start(fork_server: ForkServer, pump: OutputPump, tmp_path: Path) -> Iterator[Start]:
    """
    Start an attempt of a function or a trainable.

    Keyword arguments replace defaults of the job and of its `TrainableImport`; `server` and
    `output` replace the fork server and the files of output.
    """
    attempts: list[Attempt] = []
    numbers = itertools.count()

    def start(function: Callable[..., Any] | Trainable, **job: Any) -> Attempt:
        directory = tmp_path / str(next(numbers))
        (directory / "scratch").mkdir(parents=True)
        server = job.pop("server", fork_server)
        output = job.pop("output", None) or pump.open(directory)
        trainable = function if isinstance(function, Trainable) else by_value(function)
        to_import = TrainableImport(
            job.pop("study_uuid", str(uuid.uuid4())),
            trainable,
            job.pop("signed", True),
            job.pop("workdirs", (str(tmp_path),)),
            environment=job.pop("environment", {}),
            holds_devices=bool(job.get("descriptors")),
        )
        descriptors = job.pop("descriptors", ())
        defaults = {
            "to_import": to_import,
            "trial_uuid": str(uuid.uuid4()),
            "number": 7,
            "attempt": 1,
            "config": {"lr": 0.5},
            "seed": 11,
            "objective": Objective("loss", Mode.MIN),
            "scratch": str(directory / "scratch"),
            "store": "inline:",
        }
        _prepare(job.get("store", INLINE), to_import.study_uuid)
        child = server.spawn(
            lambda: Job(**defaults | job),
            stdout=output.stdout,
            stderr=output.stderr,
            descriptors=descriptors,
        )
        output.release()
        attempts.append(Attempt(child, output, directory=directory, workdir=tmp_path))
        return attempts[-1]

    yield start
    for attempt in attempts:
        attempt.child.kill()
        attempt.close()


def _prepare(store: str, study_uuid: str) -> None:
    """Make the study's folder in a store, as a worker does before a save."""
    if store != INLINE:
        with suppress(CheckpointError):  # some tests make the store unusable
            open_store(store).add_study(study_uuid)


@pytest.fixture
def remote(s3_server: Any, start: Start) -> Iterator[Start]:
    """Start an attempt that saves its checkpoints to S3; its fork server has the credentials."""
    server = ForkServer()
    yield partial(start, server=server, store=f"s3://{s3_server.bucket}")
    server.close()


@pytest.fixture
def run(start: Start) -> Callable[..., list[FromChild]]:
    """Run an attempt of a function to its end; return its messages as `Attempt.finish` does."""
    return lambda function, **job: start(function, **job).finish()


@pytest.fixture
def supervised(database: Database, tmp_path: Path) -> Iterator[Supervised]:
    """A worker's slot with scripted children."""
    with closing(Supervised(database, tmp_path)) as supervised:
        yield supervised


@pytest.fixture
def stage(storage_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A study and its workers on SQLite or PostgreSQL; `harness/turns.py` chooses which."""
    with Stage(storage_url, tmp_path) as stage:
        yield stage


@pytest.fixture
def sqlite_stage(sqlite_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A study and its workers on SQLite, for tests that do not depend on the database."""
    with Stage(sqlite_url, tmp_path) as stage:
        yield stage


@pytest.fixture
def postgres_stage(postgres_url: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(postgres_url, tmp_path) as stage:
        yield stage


@pytest.fixture(scope="module")
def crashable_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server with fsync; a test that stops the server must start it again."""
    with PostgresServer(fsync=True) as server:
        migrate.upgrade(create_database(server.url(), "template"))
        yield server


@pytest.fixture
def crashable_stage(crashable_server: PostgresServer, tmp_path: Path) -> Iterator[Stage]:
    """A study and its workers, on a PostgreSQL server that the test may stop."""
    name = f"stage_{uuid.uuid4().hex}"
    with Stage(
        create_database(crashable_server.url(), name, template="template"), tmp_path
    ) as stage:
        yield stage


CONSOLE = Path(sys.executable).parent / "studydb"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The working directory of studies whose trials run a command."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def script(here: Path) -> Callable[..., str]:
    """A function that writes a shell script into `here` and returns its path relative to `here`."""

    def write(text: str, name: str = "train.sh") -> str:
        path = here / name
        path.write_text(f"#!/bin/sh\nPATH={CONSOLE.parent}:$PATH\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"./{name}"

    return write


@pytest.fixture
def create_command(stage: Stage, here: Path) -> Callable[..., studydb.Study]:
    """A function that creates the stage's study with a command and the metric `error`."""

    def create(*items: str, space: Any = None, **options: Any) -> studydb.Study:
        command = studydb.Command(items, options.pop("regex", None), options.pop("file", None))
        return stage.create(command, workdir=here, space=space or {}, metric="error", **options)

    return create
