"""Takes the place of a fork server, and starts attempts from templates."""

from pathlib import Path
from typing import Any

from studydb.child.job import Job
from studydb.worker.attempt_output import OutputPump
from studydb.worker.children import ChildProcess
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.templates import Templates


class WarmServer:
    """
    Spawns attempts from templates.

    Attributes:
        printed: What a worker would print.
        started: What `Templates.spawn` has returned for each attempt.
        is_stopping: Whether the templates are told that the worker is stopping.
    """

    def __init__(self, fork_server: ForkServer, pump: OutputPump, folder: Path) -> None:
        self.printed: list[str] = []
        self.started: list[Any] = []
        self.is_stopping = False
        self.templates = Templates(
            fork_server,
            pump,
            directory=folder / "templates",
            enabled=True,
            say=self.printed.append,
            is_stopping=lambda: self.is_stopping,
        )

    def spawn(self, job: Job, **descriptors: Any) -> ChildProcess:
        self.started.append(self.templates.spawn(job, **descriptors))
        child: ChildProcess = self.started[-1].child
        return child

    @property
    def starts(self) -> list[str]:
        """How each attempt was started: "fresh" or "warm"."""
        return [started.start for started in self.started]
