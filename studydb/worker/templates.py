"""Warm starts: attempts forked from a process that has imported the trainable, where it is safe."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from studydb.child.channel import FrameError
from studydb.child.forking import ChildKind
from studydb.child.job import Job, write_job
from studydb.child.template import (
    Preparation,
    Ready,
    Unusable,
    read_readiness,
    write_preparation,
)
from studydb.domain.records import Start
from studydb.worker.attempt_output import AttemptOutput, OutputPump
from studydb.worker.children import ChildProcess, Forker, ForkerDied, TemplateOutdated
from studydb.worker.fork_server_client import ForkServer

IMPORT_TIMEOUT_S = 120.0
"""A template whose import takes longer is given up."""

IDLE_S = 60.0
"""After so long without a running attempt a template ends and gives its memory back."""

CLOSE_S = 2.0
"""In which a template ends that is told to."""

DEATHS_LIMIT = 3
"""Templates that have died between two imports, after which starts are fresh."""

_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Started:
    """
    A process that runs an attempt.

    Attributes:
        template: What it is a copy of; None for a fresh start.
    """

    child: ChildProcess
    template: "Template | None"

    @property
    def start(self) -> Start:
        """How it was started, for the attempt's row."""
        return Start.FRESH if self.template is None else Start.WARM


class Template:
    """
    One template process, ready to be forked.

    Attributes:
        is_proven: Whether a copy of it has run the user's code as far as a report or its end.
        has_forked: Whether there was any copy of it.
        used_s: When an attempt was last started or seen running, by the monotonic clock.
    """

    def __init__(self, process: ChildProcess, output: AttemptOutput) -> None:
        """Take over a process that has said that it is ready."""
        self._process, self._output = process, output
        self._forker = Forker(
            process.channel.detach(), is_gone=lambda: process.exit is not None, bury=self._bury
        )
        self.is_proven = self.has_forked = False
        self.used_s = time.monotonic()

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone."""
        return self._forker.dead

    @property
    def is_idle(self) -> bool:
        """Whether no attempt that was forked from it runs."""
        return self._forker.is_idle

    def spawn(self, job: Job, *, stdout: int, stderr: int) -> ChildProcess:
        """
        Start the process of one attempt.

        Raises:
            ForkerDied: The template is gone.
            TemplateOutdated: A fresh start would run something else.
            OSError: No process can be started.
            FrameError: The job is too large.
        """
        self.used_s = time.monotonic()
        return self._forker.spawn(ChildKind.ATTEMPT, write_job(job), stdout=stdout, stderr=stderr)

    def kill(self) -> None:
        """SIGKILL the process; with it ends what was forked from it."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and what was forked from it; kill it if it does not answer."""
        self._forker.shut()
        if self._process.wait(CLOSE_S) is None:
            self._process.kill()
        self._forker.join()
        self._output.finish()

    def _bury(self) -> None:
        self._process.kill()
        self._process.wait()


class Templates:
    """
    Starts attempts: warm from a template where that is safe, else fresh; slots may share it.

    A template is made at the first attempt, again when a source file has changed or the template
    has grown, and never again once one was found unsafe, hung, or died in its import: then one line
    says so, and every start is fresh.
    """

    def __init__(
        self,
        forkserver: ForkServer,
        pump: OutputPump,
        *,
        directory: Path,
        enabled: bool,
        say: Callable[[str], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """
        Prepare; nothing is imported yet.

        Args:
            forkserver: Makes templates, and fresh starts.
            pump: Takes what an import prints.
            directory: The folder for that.
            enabled: False for fresh starts only.
            say: Takes one line for people.
            is_stopping: Whether the worker is told to go: an import is not waited for then.
        """
        self._forkserver, self._pump, self._directory = forkserver, pump, directory
        self._enabled, self._say, self._is_stopping = enabled, say, is_stopping
        self._lock = threading.Lock()
        self._template: Template | None = None
        self._retired: list[Template] = []
        self._n_deaths = self._n_outdated = 0

    def spawn(self, job: Job, *, stdout: int, stderr: int, fresh: bool = False) -> Started:
        """
        Start the process of one attempt.

        Args:
            job: What it is to do; every job of a worker names the same trainable.
            stdout: A descriptor for its output, to be closed here afterwards.
            stderr: The same for its errors.
            fresh: Whether it must import the trainable itself.

        Raises:
            OSError: No process can be started.
            FrameError: The job is too large.
        """
        if not fresh:
            for _ in range(2):  # a file may have changed since the template imported it
                template = self._usable(job)
                if template is None:
                    break
                try:
                    child = template.spawn(job, stdout=stdout, stderr=stderr)
                    template.has_forked = True
                    return Started(child, template)
                except TemplateOutdated as cause:
                    self._retire(template, str(cause))
                except (ForkerDied, TimeoutError):
                    template.kill()
                    self._note_death(template)
        return Started(self._forkserver.spawn(job, stdout=stdout, stderr=stderr), None)

    def give_up(self, started: Started, reason: str) -> bool:
        """
        Use a template no more if the first process forked from it has died before it reported.

        Returns:
            Whether the attempt is to be started again, afresh.
        """
        template = started.template
        if template is None or template.is_proven:
            return False
        self._refuse(reason)
        self._retire(template, None)
        return True

    def drop_idle(self) -> None:
        """End templates that nobody needs: retired ones, and one that was idle for a while."""
        if not self._lock.acquire(blocking=False):  # an import is under way
            return
        try:
            template = self._template
            if template is not None and not template.is_idle:
                template.used_s = time.monotonic()
            elif template is not None and time.monotonic() - template.used_s >= IDLE_S:
                self._retired.append(template)
                self._template = None
        finally:
            self._lock.release()
        self.close_retired()

    def close(self) -> None:
        """End all templates, with what was forked from them."""
        with self._lock:
            self._enabled = False
            ending = [*self._retired, *filter(None, [self._template])]
            self._retired, self._template = [], None
        for template in ending:
            template.close()

    def _usable(self, job: Job) -> Template | None:
        with self._lock:  # slots that claim meanwhile wait for the same import
            if self._template is not None and self._template.is_dead:
                self._bury_dead()
            if self._template is None and self._enabled:
                self._template = self._make(job)
            if not self._enabled or self._template is None:
                return None
            self._template.used_s = time.monotonic()  # before another slot may take it for idle
            return self._template

    def _make(self, job: Job) -> Template | None:
        """Make a template; None, once and for all, if it may not be used."""
        preparation = Preparation(job.study_uuid, job.trainable, job.signed, job.workdirs)
        output = self._pump.open(self._directory)
        try:
            process = self._forkserver.fork(
                ChildKind.TEMPLATE,
                write_preparation(preparation),
                stdout=output.stdout,
                stderr=output.stderr,
            )
        except (FrameError, OSError):  # the fresh start that follows says why
            output.finish()
            return None
        output.release()
        reason = self._await(process)
        if reason is None:
            return Template(process, output)
        process.kill()
        process.wait()
        process.channel.close()
        output.finish()
        if not self._is_stopping():
            self._refuse(reason)
        return None

    def _await(self, process: ChildProcess) -> str | None:
        """Wait for the end of an import: why the process is no template, None if it is one."""
        deadline_s = time.monotonic() + IMPORT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._is_stopping():
                return "the worker is told to go"
            try:
                frame = process.channel.receive(timeout_s=_TICK_S)
                answer = None if frame is None else read_readiness(frame)
            except (EOFError, OSError, FrameError):
                return f"the process that imported it {process.wait(_TICK_S) or 'hung'}"
            match answer:
                case Ready():
                    return None
                case Unusable(reason=reason):
                    return reason
        return f"its import took more than {IMPORT_TIMEOUT_S:g} s"

    def _refuse(self, reason: str) -> None:
        if self._enabled:
            self._enabled = False
            self._say(f"each trial imports the trainable anew, because {reason}")

    def _retire(self, template: Template, why: str | None) -> None:
        """Fork from it no more; it ends with the last attempt that was forked from it."""
        with self._lock:
            if self._template is template:
                self._template = None
                self._retired.append(template)
                self._n_outdated = 0 if template.has_forked else self._n_outdated + 1
                if self._n_outdated >= DEATHS_LIMIT:
                    self._refuse(f"{why} each time")
                elif why is not None:
                    self._say(f"{why}; a new process imports the trainable")
        self.close_retired()

    def _note_death(self, template: Template) -> None:
        with self._lock:
            if self._template is template:
                self._bury_dead()

    def _bury_dead(self) -> None:
        assert self._template is not None
        self._retired.append(self._template)
        self._template = None
        self._n_deaths += 1
        if self._n_deaths >= DEATHS_LIMIT:
            self._refuse(f"{self._n_deaths} processes that had imported it have died")

    def close_retired(self) -> None:
        """End templates that nothing is forked from any more, and whose last attempt has ended."""
        if not self._retired or not self._lock.acquire(blocking=False):
            return
        try:
            ending = [template for template in self._retired if template.is_idle]
            self._retired = [template for template in self._retired if template not in ending]
        finally:
            self._lock.release()
        for template in ending:
            template.close()
