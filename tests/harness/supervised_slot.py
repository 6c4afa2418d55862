"""A real slot of a worker. Unless a test gives a fork server, threads act as the children."""

import signal
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.arrange import LEASE_S, new_study, register_worker
from studydb.child.channel import Channel, Frame
from studydb.child.job import Job, TrainableImport
from studydb.child.messages import End, Ended, Reported, write
from studydb.db import Database
from studydb.devices import Devices
from studydb.domain.failures import Failure
from studydb.domain.metrics import Result
from studydb.domain.records import Study
from studydb.domain.resources import Capacity
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.lease.checkpoint_rows import Checkpoints
from studydb.lease.fitting import Fitting
from studydb.lease.heartbeat import Heartbeat
from studydb.lease.room import Room
from studydb.settings import load_keyring
from studydb.worker.attempt_output import OutputPump
from studydb.worker.children import ChildProcess, Exit
from studydb.worker.current_code import CurrentCode
from studydb.worker.equipment import Equipment
from studydb.worker.host_resources import HostResources
from studydb.worker.interruption import Interruption
from studydb.worker.notices import Notices
from studydb.worker.slot import Slot, TrialLimit
from studydb.worker.templates import Templates
from studydb.worker.worker_options import WorkerOptions

GRACE_S = 2.0

ChildScript = bytes
"""The messages of a child, as the bytes that go over its channel."""


def wire(message: Any) -> bytes:
    frame = write(message)
    return framed(frame.header, frame.payload)


def framed(header: bytes, payload: bytes = b"") -> bytes:
    lengths = len(header).to_bytes(4, "big") + len(payload).to_bytes(4, "big")
    return lengths + header + payload


def reported(step: int = 1, value: float = 0.5, **metrics: Any) -> bytes:
    """A report that needs no answer."""
    return wire(Reported(None, Result(step, value, metrics, 1.0)))


def failed(kind: str = "ValueError", message: str = "", trace: str = "") -> bytes:
    """The last message of a trial whose function has raised an exception."""
    return wire(Ended(End.FAILED, Failure(kind, message, trace)))


COMPLETED = wire(Ended(End.COMPLETED))
GOOD = reported() + COMPLETED


class ScriptedChild(ChildProcess):
    """A child without a process: a thread sends the script and ends the child."""

    def __init__(self, script: ChildScript) -> None:
        ours, self._theirs = socket.socketpair()
        super().__init__(Channel(ours, send_timeout_s=1.0))
        self._script = script
        threading.Thread(target=self._send_script, daemon=True).start()

    def _send_script(self) -> None:
        with suppress(OSError):
            self._theirs.sendall(self._script)
            self._theirs.shutdown(socket.SHUT_WR)
        self.ended(Exit(code=0))

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        self.wait()
        self._theirs.close()


class ReusedChild(ScriptedChild):
    """A child that may run several trials: it sends a script for each, and ends after the last."""

    def __init__(self, *scripts: ChildScript) -> None:
        self._more = list(scripts)
        super().__init__(self._more.pop(0))

    def _send_script(self) -> None:
        if not self._more:
            super()._send_script()
            return
        with suppress(OSError):
            self._theirs.sendall(self._script)

    def take(self, first: Frame, *, stdout: int, stderr: int) -> None:
        assert first.payload
        assert stdout != stderr
        if not self._more:
            raise BrokenPipeError
        self.channel.close()
        self._theirs.close()
        ours, self._theirs = socket.socketpair()
        self.channel = Channel(ours, send_timeout_s=1.0)
        self._script = self._more.pop(0)
        threading.Thread(target=self._send_script, daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        if self.channel._socket.fileno() < 0:  # closed by the worker, so the process ends
            self.ended(Exit(code=0))
        return super().wait(timeout_s)

    def kill(self) -> None:
        self.ended(Exit(signal=signal.SIGKILL))
        super().kill()


class ScriptedChildren:
    """Takes the place of a fork server: returns a given child, or makes a child for a script."""

    def __init__(self, scripts: Iterable[ChildScript | ScriptedChild]) -> None:
        self._scripts = iter(scripts)

    def spawn(self, make_job: Callable[[], Job], **_descriptors: int) -> ChildProcess:
        assert make_job().number >= 0
        script = next(self._scripts)
        return script if isinstance(script, ScriptedChild) else ScriptedChild(script)


class Supervised:
    """One slot of a worker, on a study that by default does not retry lost and failed trials."""

    def __init__(self, database: Database, folder: Path, **study: Any) -> None:
        self._trainable = Trainable(
            str(uuid4()), TrainableKind.IMPORT, "nowhere:train", str(folder), "3.11"
        )
        given = {"num_trials": None, "max_losses": 0, "trainable": self._trainable, **study}
        self._trainable = given["trainable"]
        self.database = database
        self.study: Study = new_study(database, **given)
        self.log: list[str] = []
        self._stack = ExitStack()
        self._pump = OutputPump()
        self._stack.callback(self._pump.close)
        self._worker_id = register_worker(database, self.study)
        self._folder = folder

    def run(
        self,
        *scripts: ChildScript | ScriptedChild,
        forkserver: Any = None,
        trials: int | None = None,
        interruption: Interruption | None = None,
        **options: Any,
    ) -> Interruption:
        """Let the slot run trials, by default one per script; return the worker's interruption."""
        interruption = interruption or Interruption()
        children = forkserver or ScriptedChildren(scripts)
        templates = Templates(
            children,
            self._pump,
            directory=self._folder / "templates",
            enabled=not isinstance(children, ScriptedChildren),
            say=self.log.append,
            is_stopping=lambda: interruption.is_stopping,
        )
        equipment = self._equipment(templates, interruption, options)
        Slot(equipment, TrialLimit(trials or len(scripts)), number=0).run()
        templates.close()
        return interruption

    def _equipment(
        self, templates: Templates, interruption: Interruption, given: dict[str, Any]
    ) -> Equipment:
        database, study, keyring = self.database, self.study, load_keyring()
        options = WorkerOptions(
            storage="",
            study=study.name,
            say=self.log.append,
            grace_s=GRACE_S,
            patience_s=5.0,
            **given,
        )
        checkpoints = Checkpoints(database, study, keyring, retry=lambda call: call())
        return Equipment(
            options=options,
            database=database,
            study=study,
            worker_id=self._worker_id,
            code=CurrentCode(
                database,
                keyring,
                options,
                to_import=TrainableImport(
                    study.uuid, self._trainable, signed=True, workdirs=(str(self._folder),)
                ),
                checkpoints=checkpoints,
                templates=templates,
            ),
            templates=templates,
            pump=self._pump,
            checkpoints=checkpoints,
            heartbeat=Heartbeat(database, study, worker_id=self._worker_id, lease_s=LEASE_S),
            interruption=interruption,
            room=Room(say=self.log.append),
            host=HostResources(Capacity(), Devices.of("none")),
            fitting=Fitting(database, study, worker_id=self._worker_id, capacity=Capacity()),
            notices=Notices(study.name, self.log.append),
        )

    def close(self) -> None:
        self._stack.close()
