"""
Run the command of a trial: its process, its reports, its checkpoints and its end.

The runner is the trial's process, and the command is its child with a process group of its own. The
command reports by lines on stdout, over a unix socket, or in a file. The runner gives each report
to `trial.report`, so that a command has the same promises as a function.
"""

import contextlib
import json
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from studydb.domain.command_line import Paths
from studydb.domain.errors import InvalidReport, LeaseLost, StudydbError, TrialStopped
from studydb.processes import die_with_parent
from studydb.trainables.calling import ReportingTrial
from studydb.trainables.command import StoredCommand
from studydb.trainables.command_reports import CommandReport, ReportLines, read_json

GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, if the worker has not killed the trial before."""

ANSWERED_S = 10.0
"""
Seconds before SIGTERM, if the answer to a report has told the command to end: it may be saving.
"""

TICK_S = 0.1
"""How often the runner looks at the report file, and whether the trial is to end."""

_PIECE = 1 << 16
_TAIL_BYTES, _TAIL_LINES = 1 << 14, 20
_SOCKET_PATH_BYTES = 100
"""The longest path of a unix socket that every system accepts, rounded down."""

TEMPORARY_FAILURE = 75
"""The exit code EX_TEMPFAIL of sysexits.h: the trial is to run again later."""

_GIVEN_BACK = (130, 143, -signal.SIGINT, -signal.SIGTERM)
_KILLED = (137, -signal.SIGKILL)

_BUFFERED_S, _BUFFERED_BYTES = 60.0, 4096


class CommandFailed(Exception):
    """
    The command failed.

    Attributes:
        tail: The last lines of its output.
    """

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


class GivenBack(Exception):
    """The command gives its trial back: another worker, or this one, runs the trial again."""

    def __init__(self, message: str, *, later: bool) -> None:
        super().__init__(message)
        self.later = later


class CommandTrial(ReportingTrial, Protocol):
    """The part of a trial that a command needs."""

    number: int
    attempt: int
    seed: int
    start_step: int
    study_name: str
    scratch: Path

    @property
    def has_reported(self) -> bool:
        """Whether a result was reported in this attempt."""

    def check(self) -> None:
        """Raise TrialStopped or LeaseLost if the trial is to end before its next report."""

    def why_ended(self) -> str:
        """After such an error: "stop", "pause", "preempt" or "lost"."""


class CommandTrainable:
    """A command that can be called like a trainable function."""

    def __init__(self, stored: StoredCommand) -> None:
        self._stored = stored

    def __call__(self, config: dict[str, Any], trial: CommandTrial) -> None:
        """
        Run the command to its end.

        Raises:
            TrialStopped, LeaseLost: The trial was to end, and the command has ended.
            CommandFailed: The command has failed.
            GivenBack: The command gives its trial back.
        """
        with _Files(trial, config) as files:
            line = self._stored.line.expand(self._stored.flatten(config), files.paths)
            _Run(self._stored, line, trial, files).run()


class _Files:
    """The files of one attempt: config, checkpoint, save, socket and stop."""

    def __init__(self, trial: CommandTrial, config: Mapping[str, Any]) -> None:
        self._trial = trial
        root = trial.scratch
        self.config, self.save, self.stop = root / "config.json", root / "save", root / "stop"
        self.checkpoint_dir = root / "checkpoint_dir"
        self._root, self._n_saved = root, 0
        self.config.write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
        for directory in (self.save, self.checkpoint_dir):
            directory.mkdir()
        self.checkpoint = None if trial.checkpoint is None else str(trial.checkpoint.path)
        if self.checkpoint is not None:
            shutil.copytree(self.checkpoint, self.checkpoint_dir, dirs_exist_ok=True)
        self._stamps = self._stamps_now()
        self._short: str | None = None
        path = str(root / "socket")
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            self._short = tempfile.mkdtemp(prefix="studydb-", dir="/tmp")
            path = f"{self._short}/socket"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.socket_path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)

    @property
    def paths(self) -> Paths:
        return Paths(str(self.config), str(self.checkpoint_dir))

    def environment(self) -> dict[str, str]:
        trial = self._trial
        given = {name: value for name, value in os.environ.items() if name != "STUDYDB_CHECKPOINT"}
        given |= {
            "STUDYDB_CONFIG": str(self.config),
            "STUDYDB_STUDY": trial.study_name,
            "STUDYDB_TRIAL": str(trial.number),
            "STUDYDB_ATTEMPT": str(trial.attempt),
            "STUDYDB_SEED": str(trial.seed),
            "STUDYDB_STEP": str(trial.start_step),
            "STUDYDB_SAVE": str(self.save),
            "STUDYDB_SOCKET": self.socket_path,
            "STUDYDB_STOP": str(self.stop),
            "PYTHONUNBUFFERED": "1",
        }
        if self.checkpoint is not None:
            given["STUDYDB_CHECKPOINT"] = self.checkpoint
        return given

    @contextlib.contextmanager
    def taken(self, report: CommandReport, directory: str) -> Iterator[Path | None]:
        """
        Move the saved checkpoint away, so that the command can write the next one.

        Raises:
            InvalidReport: There is no checkpoint.
        """
        checkpoint = report.checkpoint
        if isinstance(checkpoint, str):
            path = Path(directory) / checkpoint
            if not path.is_dir():
                raise InvalidReport(f"The report's checkpoint {checkpoint!r} is no directory.")
            yield path
            return
        if not checkpoint and not self._has_new_state():
            yield None
            return
        self._n_saved += 1
        taken = self._root / f"saved-{self._n_saved}"
        if checkpoint:
            if not any(self.save.iterdir()):
                raise InvalidReport(
                    "The report says that it saves a checkpoint, but $STUDYDB_SAVE is empty."
                )
            self.save.rename(taken)
            self.save.mkdir()
        elif not self._copied(taken):
            yield None
            return
        try:
            yield taken
        finally:
            shutil.rmtree(taken, ignore_errors=True)

    def ask_to_stop(self, why: str) -> None:
        """Make the stop file, which appears with its content."""
        being_written = self.stop.with_name("stop-")
        being_written.write_text(f"{why}\n")
        being_written.rename(self.stop)

    def _stamps_now(self) -> set[tuple[str, int, int, int]]:
        found = set()
        for folder, _, names in os.walk(self.checkpoint_dir):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    file = Path(folder, name)
                    of = file.stat()
                    found.add((str(file), of.st_ino, of.st_size, of.st_mtime_ns))
        return found

    def _has_new_state(self) -> bool:
        return self._stamps_now() != self._stamps

    def _copied(self, target: Path) -> bool:
        """Copy `{checkpoint_dir}`; False if the script wrote to it during the copy."""
        before = self._stamps_now()
        try:
            shutil.copytree(self.checkpoint_dir, target)
        except (OSError, shutil.Error):
            before = set()
        if not before or self._stamps_now() != before:
            shutil.rmtree(target, ignore_errors=True)
            return False
        self._stamps = before
        return True


class _Run:
    """One run of a command."""

    def __init__(
        self, stored: StoredCommand, line: list[str], trial: CommandTrial, files: _Files
    ) -> None:
        self._stored, self._line, self._trial, self._files = stored, line, trial, files
        self._lines = ReportLines(stored.pattern)
        self._file_lines = ReportLines(None)
        self._ended: TrialStopped | LeaseLost | None = None
        self._sigterm_s = math.inf
        self._failed: InvalidReport | None = None
        self._deadline_s = math.inf
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._wrote = self._asked = False
        self._began_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, bytes] = {}
        self._report_file = self._open_report_file()
        self._exit: int | None = None

    def run(self) -> None:
        self._process = self._start()
        try:
            self._watch()
            while self._process.poll() is None:
                self._serve(TICK_S)
            self._read_the_rest()
        finally:
            self._kill_group(signal.SIGKILL)
            self._close()
        self._conclude(self._process.returncode)

    def _start(self) -> "subprocess.Popen[bytes]":
        runner = os.getpid()
        try:
            return subprocess.Popen(
                self._line,
                cwd=self._stored.directory,
                env=self._files.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL, runner),  # noqa: PLW1509  the runner has one thread
            )
        except (OSError, ValueError) as cause:
            raise CommandFailed(
                f"The command {self._line[0]!r} cannot be started: {cause}.", ""
            ) from None

    def _watch(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, self._read_output)
        self._files.listener.setblocking(False)
        self._selector.register(self._files.listener, selectors.EVENT_READ, self._accept)
        with contextlib.suppress(
            AttributeError, OSError
        ):  # only Linux has descriptors of processes
            self._exit = os.pidfd_open(self._process.pid)
            self._selector.register(self._exit, selectors.EVENT_READ, self._selector.unregister)

    def _close(self) -> None:
        self._process.wait()
        self._selector.close()
        for opened in (self._process.stdout, self._process.stderr, *self._clients):
            if opened is not None:
                opened.close()
        if self._exit is not None:
            os.close(self._exit)

    def _serve(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data(key.fileobj)
        self._read_report_file()
        self._check()
        if time.monotonic() >= self._sigterm_s:
            self._sigterm_s = math.inf
            self._kill_group(signal.SIGTERM)
        if time.monotonic() >= self._deadline_s:
            self._kill_group(signal.SIGKILL)

    def _check(self) -> None:
        if self._ended is None:
            try:
                self._trial.check()
            except (TrialStopped, LeaseLost) as ended:
                self._end(ended)

    def _read_the_rest(self) -> None:
        """Read what the command has left in its pipes; a grandchild may keep them open."""
        while any(key.data == self._read_output for key in self._selector.get_map().values()):
            ready = [key for key, _ in self._selector.select(0) if key.data == self._read_output]
            if not ready:
                break
            for key in ready:
                self._read_output(key.fileobj)
        self._read_report_file()
        self._guarded(self._lines.end())
        self._guarded(self._file_lines.end())

    def _read_output(self, pipe: Any) -> None:
        try:
            data = os.read(pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            return
        is_stdout = pipe is self._process.stdout
        _write_all(1 if is_stdout else 2, data)
        self._keep_tail(data)
        if is_stdout:
            self._warn_of_buffering(data)
            self._guarded(self._lines.feed(data))

    def _keep_tail(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def _tail_text(self) -> str:
        text = b"".join(self._tail).decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def _warn_of_buffering(self, data: bytes) -> None:
        late = time.monotonic() - self._began_s > _BUFFERED_S
        if not self._wrote and late and len(data) >= _BUFFERED_BYTES:
            _write_all(
                2,
                b"studydb: the command's first output came after a minute, in a large piece. It "
                b"may buffer stdout; flush it after each report, so that reports arrive in time.\n",
            )
        self._wrote = True

    def _guarded(self, reports: Iterator[CommandReport]) -> None:
        """Give reports to the trial; an invalid report ends the command, and the trial fails."""
        try:
            for report in reports:
                self._report(report)
        except InvalidReport as error:
            if self._failed is None and self._ended is None:
                self._failed = error
                self._terminate("stop")

    def _report(self, report: CommandReport, *, is_answered: bool = False) -> None:
        """
        Report one step; a report that ends the trial has the command end.

        Args:
            is_answered: Whether the command is told by an answer.

        Raises:
            InvalidReport: The metrics or the checkpoint are wrong.
        """
        try:
            with self._files.taken(report, self._stored.directory) as checkpoint:
                self._trial.report(report.metrics, checkpoint=checkpoint)
        except (TrialStopped, LeaseLost) as ended:
            self._end(ended, after_s=ANSWERED_S if is_answered else 0.0)

    def _end(self, ended: TrialStopped | LeaseLost, *, after_s: float = 0.0) -> None:
        if self._ended is None:
            self._ended = ended
            self._terminate(self._trial.why_ended(), after_s=after_s)

    def _terminate(self, why: str, *, after_s: float = 0.0) -> None:
        if self._asked:
            return
        self._asked = True
        self._files.ask_to_stop(why)
        now_s = time.monotonic()
        self._sigterm_s, self._deadline_s = now_s + after_s, now_s + GRACE_S

    def _kill_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    # --- the socket

    def _accept(self, listener: Any) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.setblocking(False)
            self._clients[client] = b""
            self._selector.register(client, selectors.EVENT_READ, self._read_client)

    def _read_client(self, client: Any) -> None:
        try:
            data = client.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        *lines, self._clients[client] = (self._clients[client] + data).split(b"\n")
        for line in lines:
            self._answer(client, line)

    def _answer(self, client: socket.socket, line: bytes) -> None:
        try:
            self._report(read_json(line), is_answered=True)
            answer = self._verdict()
        except StudydbError as error:
            answer = {"error": str(error), "type": type(error).__name__}
        client.setblocking(True)
        client.settimeout(GRACE_S)
        try:
            client.sendall(json.dumps(answer).encode() + b"\n")
            client.setblocking(False)
        except OSError:
            self._drop(client)

    def _verdict(self) -> dict[str, Any]:
        if self._ended is None:
            return {"go": True}
        return {"go": False, "why": self._trial.why_ended()}

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
        client.close()

    # --- the report file

    def _open_report_file(self) -> "_Tailed | None":
        if self._stored.report_file is None:
            return None
        name = self._stored.report_file.replace("{trial}", str(self._trial.number))
        return _Tailed(Path(self._stored.directory) / name)

    def _read_report_file(self) -> None:
        if self._report_file is not None and (data := self._report_file.read()):
            self._guarded(map(read_json, filter(bytes.strip, data)))

    # --- the end

    def _conclude(self, code: int) -> None:
        if self._ended is not None:
            raise self._ended
        if self._failed is not None:
            raise self._failed
        self._trial.check()
        if code in _GIVEN_BACK:
            raise GivenBack(
                f"The command {_exit_text(code)}, and gives the trial back.", later=False
            )
        if code == TEMPORARY_FAILURE:
            raise GivenBack("The command asks to run later (exit code 75).", later=True)
        if code in _KILLED:  # the worker sees this process die in the same way
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if code != 0:
            raise CommandFailed(f"The command {_exit_text(code)}.", self._tail_text())
        if not self._trial.has_reported and self._trial.checkpoint is None:
            metric = self._trial.metric
            raise CommandFailed(
                f"The command ended without reporting {metric!r}. Print a line such as "
                f'[studydb] {{"{metric}": 0.1}} after each step, or call `studydb report '
                f"{metric}=0.1`.",
                self._tail_text(),
            )


class _Tailed:
    """A growing file, read from where it ended when the attempt began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0
        self._rest = b""

    def read(self) -> list[bytes]:
        """Read the lines that were completed since the last call; a shorter file begins anew."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _write_all(descriptor: int, data: bytes) -> None:
    """Pass output on to the trial's log; a log that is gone must not end the command."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
