"""
Run the command of a trial: its process, its reports, its checkpoints and its end.

The runner is the trial's process. The command is its child, in a separate process group. The
command reports by lines of its output, over a unix socket, or in a file. The runner gives each
report to `trial.report`, so the promises about a function's reports hold for a command's reports,
too.
"""

import contextlib
import errno
import json
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studydb.domain.errors import (
    CheckpointError,
    InvalidReport,
    LeaseLost,
    StudydbError,
    TrialStopped,
)
from studydb.processes import die_with_parent, exit_text
from studydb.trainables.command import StoredCommand
from studydb.trainables.command_files import CommandFiles, CommandTrial, GrowingFile
from studydb.trainables.command_reports import CommandReport, ReportLines, read_json
from studydb.trainables.interpreter import why_not_started

ANSWERED_S = 10.0
"""
Seconds from an answer that tells the command to end until the runner sends SIGTERM; the command can
save in this time. The runner waits a third of the grace instead if that is shorter.
"""

SEND_S = 1.0
"""How long a client may take to read an answer before its connection is closed."""

TICK_S = 0.1
"""
How long the runner waits at most for output or a connection before it reads the report file and
asks whether the trial is to end.
"""

_PIECE, _LAST_PIECES = 1 << 16, 1000
"""The most bytes of one read, and the most rounds of reading after the command has ended."""

_TAIL_BYTES, _TAIL_LINES = 1 << 14, 20

_TWO_STREAMS = (
    "studydb: the pattern of --report-regex matches lines on stdout and on stderr. Only those on "
    "{taken}, which came first, are reports. Write a pattern that matches on one stream only.\n"
)
TEMPORARY_FAILURE = 75
"""The exit code EX_TEMPFAIL of sysexits.h: the trial is to run again later."""

_GIVEN_BACK = (130, 143, -signal.SIGINT, -signal.SIGTERM)
_KILLED = (137, -signal.SIGKILL)

_WRONG_PROGRAM = (errno.ENOEXEC, errno.E2BIG, errno.EINVAL)
"""Errors that the start of the command would raise on every host."""

_BUFFERED_S, _BUFFERED_BYTES = 60.0, 4096


class CommandFailed(Exception):
    """
    The command failed or cannot be started, or its reports are invalid or missing.

    If a report was refused, `__cause__` is the error of this report.

    Attributes:
        tail: The last lines of the command's output.
    """

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


class GivenBack(Exception):
    """
    The trial is given back without a failure, and this worker or another one runs it again.

    Attributes:
        later: Whether a back-off passes before the trial runs again.
    """

    def __init__(self, message: str, *, later: bool) -> None:
        super().__init__(message)
        self.later = later


class ProcessLost(Exception):
    """
    SIGKILL has killed the command, or the command has exited with 137, a shell's code for SIGKILL.

    The host may have sent the signal, so the attempt counts as lost, and not as failed.
    """


class CommandTrainable:
    """A command that can be called like a trainable function."""

    def __init__(self, stored: StoredCommand) -> None:
        self._stored = stored

    def __call__(self, config: dict[str, Any], trial: CommandTrial) -> None:
        """
        Run the command to its end.

        Raises:
            TrialStopped, LeaseLost: The trial was to end, and the command has ended.
            CommandFailed: The command has failed; no host can start the command; its interpreter
                does not exist on this host; or a report is invalid or missing.
            GivenBack: The command has given its trial back, or this host cannot start the command,
                or make its files, now.
            ProcessLost: The command was killed by SIGKILL, or exited with 137.
        """
        keeps = self._stored.line.names_checkpoint_dir
        try:
            opened = CommandFiles(trial, config, keeps=keeps)
        except OSError as error:
            why = f"This host cannot make the command's files now: {error}."
            raise GivenBack(why, later=True) from None
        with opened as files:
            stored = self._stored
            if trial.runs_in_directory:
                stored = stored.run_in(trial.directory)
            line = stored.line.expand(stored.flatten(config), files.paths)
            _Run(stored, line, trial, files).run()


class _Run:
    """One run of a command."""

    def __init__(
        self, stored: StoredCommand, line: list[str], trial: CommandTrial, files: CommandFiles
    ) -> None:
        self._stored, self._line, self._trial, self._files = stored, line, trial, files
        self._lines = ReportLines(stored.pattern, trial.metric)
        self._error_lines = ReportLines(stored.pattern, trial.metric, is_stderr=True)
        self._ended: TrialStopped | LeaseLost | None = None
        self._sigterm_s = math.inf
        self._failed: InvalidReport | CheckpointError | None = None
        self._deadline_s = math.inf
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._wrote = self._asked = self._has_warned_of_streams = False
        self._began_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, bytes] = {}
        self._report_file = self._open_report_file()
        self._exit_descriptor: int | None = None

    def run(self) -> None:
        self._process = self._start()
        try:
            self._watch()
            while (exited := self._exited()) is None:
                self._serve(TICK_S)
            self._kill_group(signal.SIGKILL)
            has_succeeded = exited.si_code == os.CLD_EXITED and exited.si_status == 0
            self._read_the_rest(has_succeeded=has_succeeded)
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
                # The only inheritable descriptors are the locks of the trial's devices. The command
                # holds them, too, because its children may use the devices longer than this process
                # lives.
                close_fds=False,
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL, runner),  # noqa: PLW1509  the runner has one thread
            )
        except (OSError, ValueError) as cause:
            if (program := self._program_without_interpreter(cause)) is not None:
                raise CommandFailed(why_not_started(program), "") from None
            if isinstance(cause, OSError) and cause.errno not in _WRONG_PROGRAM:
                why = f"This host cannot start {self._line[0]!r} now: {cause}."
                raise GivenBack(why, later=True) from None
            raise CommandFailed(
                f"The command {self._line[0]!r} cannot be started: {cause}.", ""
            ) from None

    def _program_without_interpreter(self, cause: OSError | ValueError) -> Path | None:
        """Return the program's file if only the file's interpreter was not found; else None."""
        if not isinstance(cause, FileNotFoundError):
            return None
        directory = Path(self._stored.directory)
        found = shutil.which(directory / self._line[0] if "/" in self._line[0] else self._line[0])
        return Path(found) if found is not None and directory.is_dir() else None

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
            self._exit_descriptor = os.pidfd_open(self._process.pid)
            self._selector.register(
                self._exit_descriptor, selectors.EVENT_READ, self._selector.unregister
            )

    def _close(self) -> None:
        self._process.wait()
        self._selector.close()
        for opened in (self._process.stdout, self._process.stderr, *self._clients):
            if opened is not None:
                opened.close()
        if self._exit_descriptor is not None:
            os.close(self._exit_descriptor)

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

    def _exited(self) -> os.waitid_result | None:
        """
        Return how the command has ended; None while it runs.

        The command is not reaped, so that its group can be killed.
        """
        wanted = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, wanted)

    def _read_the_rest(self, *, has_succeeded: bool) -> None:
        """
        Read what the command has left: output, reports, and connections that wait.

        A last line without a newline is read only if the command has succeeded. A command that was
        killed may have written a part of the line: of `loss=940`, `loss=9`.
        """
        for _ in range(_LAST_PIECES):  # a process outside the group may write without end
            ready = self._selector.select(0)
            if not ready:
                break
            for key, _events in ready:
                key.data(key.fileobj)
        if has_succeeded:
            self._read_lines(None, is_stdout=True)
            self._read_lines(None, is_stdout=False)
        self._read_report_file(last=has_succeeded)

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
        self._read_lines(data, is_stdout=is_stdout)

    def _read_lines(self, data: bytes | None, *, is_stdout: bool) -> None:
        """
        Read the reports of a stream; the pattern counts only on the stream where it matched first.

        Args:
            data: The next bytes; None at the end of the stream.
        """
        if not is_stdout and self._stored.pattern is None:
            return
        lines, other = self._lines, self._error_lines
        if not is_stdout:
            lines, other = other, lines
        lines.ignores_pattern = other.has_matched
        self._guarded(lines.end() if data is None else lines.feed(data))
        if lines.has_ignored and not self._has_warned_of_streams:
            self._has_warned_of_streams = True
            taken = "stderr" if is_stdout else "stdout"
            _write_all(2, _TWO_STREAMS.format(taken=taken).encode())

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
                b"studydb: the command's first output came after a minute, in a large piece. The "
                b"command may buffer stdout; flush stdout after each report, so that reports "
                b"arrive in time.\n",
            )
        self._wrote = True

    def _guarded(self, reports: Iterator[CommandReport]) -> None:
        """Give reports to the trial; a refused report ends the command, and the trial fails."""
        try:
            for report in reports:
                self._report(report)
        except (InvalidReport, CheckpointError) as error:
            if self._failed is None and self._ended is None:
                self._failed = error
                self._terminate("stop")

    def _report(self, report: CommandReport, *, is_answered: bool = False) -> None:
        """
        Report one step; if the trial is to end, ask the command to end.

        After a refused report, nothing more is reported.

        Args:
            is_answered: Whether the command waits for an answer; the answer can tell it to end.

        Raises:
            InvalidReport, CheckpointError: The metrics or the checkpoint are refused.
        """
        if self._failed is not None:
            return
        try:
            with self._files.taken(report, is_answered=is_answered) as checkpoint:
                self._trial.report(report.metrics, checkpoint=checkpoint)
        except (TrialStopped, LeaseLost) as ended:
            grace_s = self._trial.grace_s
            self._end(ended, after_s=min(ANSWERED_S, grace_s / 3) if is_answered else 0.0)

    def _end(self, ended: TrialStopped | LeaseLost, *, after_s: float = 0.0) -> None:
        if self._ended is None:
            self._ended = ended
            self._terminate(self._trial.why_ended(), after_s=after_s)

    def _terminate(self, why: str, *, after_s: float = 0.0) -> None:
        if self._asked:
            return
        self._asked = True
        now_s = time.monotonic()
        self._sigterm_s = now_s + after_s
        self._deadline_s = now_s + self._trial.grace_s
        with contextlib.suppress(OSError):  # a full disk; SIGTERM tells the command, too
            self._files.ask_to_stop(why)

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
            if rest := self._clients[client].strip():
                self._answer(client, rest)
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
        if client not in self._clients:  # dropped, because it did not read an earlier answer
            return
        try:
            client.settimeout(SEND_S)
            client.sendall(json.dumps(answer).encode() + b"\n")
            client.setblocking(False)
        except OSError:
            self._drop(client)

    def _verdict(self) -> dict[str, Any]:
        if self._ended is None and self._failed is None:
            return {"go": True}
        return {"go": False, "why": "stop" if self._ended is None else self._trial.why_ended()}

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
        client.close()

    # --- the report file

    def _open_report_file(self) -> "GrowingFile | None":
        if self._stored.report_file is None:
            return None
        name = self._stored.report_file.replace("{trial}", str(self._trial.number))
        name = name.replace("{study}", self._trial.study_name)
        return GrowingFile(Path(self._stored.directory) / name)

    def _read_report_file(self, *, last: bool = False) -> None:
        if self._report_file is not None:
            lines = self._report_file.read(last=last)
            self._guarded(map(read_json, filter(bytes.strip, lines)))

    # --- the end

    def _conclude(self, code: int) -> None:
        if self._ended is not None:
            raise self._ended
        if self._failed is not None:
            raise CommandFailed(str(self._failed), self._tail_text()) from self._failed
        self._trial.check()
        if code in _GIVEN_BACK:
            raise GivenBack(
                f"The command {exit_text(code)}, and gives the trial back.", later=False
            )
        if code == TEMPORARY_FAILURE:
            raise GivenBack("The command asks to run later (exit code 75).", later=True)
        if code in _KILLED:  # this process then kills itself, so the worker sees a lost attempt
            raise ProcessLost("The command was killed by SIGKILL.")
        if code != 0:
            raise CommandFailed(f"The command {exit_text(code)}.", self._tail_text())
        if not self._trial.has_reported and self._trial.checkpoint is None:
            metric = self._trial.metric
            cure = (
                f'Print a line such as [studydb] {{"{metric}": 0.1}} after each step, or call '
                f"`studydb report {metric}=0.1`."
                if self._stored.pattern is None
                else "No line of its output matches --report-regex. Compare the pattern with the "
                "output: `studydb logs`."
            )
            raise CommandFailed(
                f"The command ended without reporting {metric!r}. {cure}", self._tail_text()
            )


def _write_all(descriptor: int, data: bytes) -> None:
    """Pass output on to the trial's log; a log that is gone must not end the command."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]
