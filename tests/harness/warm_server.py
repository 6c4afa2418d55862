"""Takes the place of a fork server, and starts attempts from templates, or fresh."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from studydb.child.job import Job
from studydb.domain.trainable import Trainable
from studydb.worker.attempt_output import OutputPump
from studydb.worker.children import ChildProcess
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.templates import Templates


class WarmServer:
    """
    Spawns attempts by `Templates`.

    Attributes:
        printed: What a worker would print.
        started: What `Templates.spawn` has returned for each attempt.
        is_stopping: Whether the templates are told that the worker is stopping.
        known: The trainable that the worker knows before it makes a job; None if it is the job's
            trainable.
        on_read: Called when `Templates` first asks for the job of an attempt. A real worker reads
            the study's trainable at this time.
    """

    def __init__(self, fork_server: ForkServer, pump: OutputPump, folder: Path) -> None:
        self.printed: list[str] = []
        self.started: list[Any] = []
        self.is_stopping = False
        self.known: Trainable | None = None
        self.on_read: Callable[[], Any] = lambda: None
        self.templates = Templates(
            fork_server,
            pump,
            directory=folder / "templates",
            enabled=True,
            say=self.printed.append,
            is_stopping=lambda: self.is_stopping,
        )

    def spawn(self, make_job: Callable[[], Job], **descriptors: Any) -> ChildProcess:
        @cache
        def read() -> Job:
            self.on_read()
            return make_job()

        to_import = make_job().to_import
        to_import = structs.replace(to_import, trainable=self.known or to_import.trainable)
        self.started.append(self.templates.spawn(to_import, read, **descriptors))
        child: ChildProcess = self.started[-1].child
        return child

    @property
    def starts(self) -> list[str]:
        """How each attempt was started: "fresh" or "warm"."""
        return [started.start for started in self.started]
