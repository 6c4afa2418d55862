"""Warm starts: attempts are forked, if safe, from a process that has imported the trainable."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from studydb.child.channel import Frame, FrameError
from studydb.child.forking import ChildKind
from studydb.child.job import Job, TrainableImport, write_job
from studydb.child.template import Ready, Unusable, read_readiness, write_import
from studydb.domain.attempt_process import Start
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.worker.attempt_output import AttemptOutput, OutputPump
from studydb.worker.children import ChildProcess, Forker, ForkerDied, TemplateOutdated
from studydb.worker.fork_server_client import ForkServer

IMPORT_TIMEOUT_S = 120.0
"""A template whose import takes longer is killed."""

IDLE_S = 60.0
"""A template without a running attempt is ended after this time, to free its memory."""

CLOSE_S = 2.0
"""How long a template may take to end before it is killed."""

DEATHS_LIMIT = 3
"""
All starts are fresh after this many templates have died, or after this many templates in a row were
outdated before they forked an attempt.
"""

_TICK_S = 0.25


class Started(Struct, frozen=True):
    """
    A process that runs an attempt.

    Attributes:
        template: The template that the process was forked from, if any.
        is_reused: Whether the process has run an earlier attempt.
    """

    child: ChildProcess
    template: "Template | None"
    is_reused: bool = False

    @property
    def start(self) -> Start:
        """How the process was started, for the attempt's row."""
        if self.is_reused:
            return Start.REUSED
        return Start.FRESH if self.template is None else Start.WARM


class _Replaced(Exception):
    """The study was given another trainable than the one that the template has imported."""


class Template:
    """
    One template process, ready to be forked.

    Attributes:
        to_import: What the process has imported, with the environment of the import.
        is_proven: Whether an attempt forked from the template has begun (see `Progress.began`), or
            sent its `Ended`.
        has_forked: Whether any attempt was forked from the template.
        used_s: When the template was last used, by the monotonic clock: when it was made, chosen
            for an attempt, or seen with a running attempt.
    """

    def __init__(
        self, process: ChildProcess, output: AttemptOutput, to_import: TrainableImport
    ) -> None:
        self._process, self._output, self.to_import = process, output, to_import
        self._forker = Forker(
            process.channel.detach(),
            is_gone=lambda: process.exit is not None,
            on_death=self._on_death,
        )
        self.is_proven = self.has_forked = False
        self.used_s = time.monotonic()

    @property
    def is_dead(self) -> bool:
        return self._forker.dead

    @property
    def is_idle(self) -> bool:
        return self._forker.is_idle

    def spawn(
        self,
        make_job: Callable[[], Job],
        *,
        stdout: int,
        stderr: int,
        descriptors: Sequence[int] = (),
    ) -> ChildProcess:
        """
        Start the process of one attempt; see `Forker.spawn`.

        Raises:
            _Replaced: The job has another trainable than this template.
        """
        self.used_s = time.monotonic()
        return self._forker.spawn(
            ChildKind.ATTEMPT,
            lambda: self._first_message(make_job()),
            stdout=stdout,
            stderr=stderr,
            descriptors=descriptors,
        )

    def _first_message(self, job: Job) -> Frame:
        if job.to_import.trainable.uuid != self.to_import.trainable.uuid:
            raise _Replaced
        return write_job(job)

    def kill(self) -> None:
        """Kill the process; the attempts forked from it end with it."""
        self._process.kill()

    def close(self) -> None:
        """End the process and the attempts forked from it; kill the process after `CLOSE_S`."""
        self._forker.shut()
        if self._process.wait(CLOSE_S) is None:
            self._process.kill()
        self._forker.join()
        self._output.finish()

    def _on_death(self) -> None:
        self._process.kill()
        self._process.wait()


_Key = tuple[bool, tuple[tuple[str, str], ...]]


def _key_of(to_import: TrainableImport) -> _Key:
    """The key of an import's template: whether attempts hold devices, and the environment."""
    return to_import.holds_devices, tuple(sorted(to_import.environment.items()))


class Templates:
    """
    Starts attempts: from a template if that is safe, else fresh; slots may share this object.

    For each `environment` of a TrainableImport there are up to two templates: one for attempts
    without devices, and one for attempts that hold devices. A template is made when the
    first attempt needs it. It is replaced when a source file has changed, or the template's memory
    or open files have grown.

    A template can be unusable (see child/template.py), or hang or die in its import. Then a line is
    printed. If the template was for attempts without devices, all later attempts start fresh, until
    `adopt` is called. If the template was for attempts with devices, only later attempts that hold
    devices and run the same trainable start fresh.

    Three other kinds of attempts start fresh, too: attempts that run a command; attempts that hold
    devices, until `allow_devices` is called for their trainable; and attempts that are not yet
    forked when `adopt` replaces their trainable.

    Args:
        directory: The folder for the output of imports.
        enabled: False to start all attempts fresh.
        is_stopping: Whether the worker is stopping; if so, a running import is abandoned.
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
        self._forkserver, self._pump, self._directory = forkserver, pump, directory
        self._allowed = self._enabled = enabled
        self._say, self._is_stopping = say, is_stopping
        self._adopted: str | None = None
        self._lock = threading.Lock()
        self._templates: dict[_Key, Template] = {}
        # The UUID of the only trainable whose attempts with devices start warm, and the UUID of a
        # trainable that `allow_devices` must not allow, because its template was unusable.
        self._warm_with_devices: str | None = None
        self._fresh_with_devices: str | None = None
        self._retired: list[Template] = []
        self._n_deaths = self._n_outdated = 0

    def spawn(
        self,
        to_import: TrainableImport,
        make_job: Callable[[], Job],
        *,
        stdout: int,
        stderr: int,
        fresh: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Started:
        """
        Start the process of one attempt.

        Args:
            to_import: What the job will probably import. If a template has imported it, a process
                is forked from the template while the job is made. Otherwise the job is made first,
                because it names the study's current trainable, the only one that a new template
                should import.
            make_job: Makes the job; raises an exception if there is no job to run. It may call
                `adopt`. It may be called several times, and must return the same job each time.
            stdout, stderr: Descriptors for the process's output; the caller closes them.
            fresh: Whether the process must import the trainable itself.
            descriptors: The locks of the attempt's devices, which the process inherits.

        Raises:
            OSError: No process can be started.
            FrameError: The job is too large.
        """
        if not fresh:
            for _ in range(2):  # the first template may be outdated or dead, or its code replaced
                template = self._ready_template(to_import) or self._usable(make_job().to_import)
                if template is None:
                    break
                try:
                    child = template.spawn(
                        make_job, stdout=stdout, stderr=stderr, descriptors=descriptors
                    )
                    template.has_forked = True
                    return Started(child, template)
                except _Replaced:
                    self.close_retired()
                    to_import = make_job().to_import
                except TemplateOutdated as cause:
                    self._retire(template, str(cause))
                except (ForkerDied, TimeoutError):
                    template.kill()
                    with self._lock:
                        if template in self._templates.values():
                            self._drop_dead(template)
        child = self._forkserver.spawn(
            make_job, stdout=stdout, stderr=stderr, descriptors=descriptors
        )
        return Started(child, None)

    def allow_devices(self, trainable: Trainable) -> None:
        """From now on start attempts of this trainable warm if possible, also with devices."""
        if self._enabled and trainable.uuid != self._fresh_with_devices:
            self._warm_with_devices = trainable.uuid

    def adopt(self, trainable: Trainable) -> None:
        """
        From now on start only attempts of this trainable warm; it replaces another trainable.

        Warm starts that were given up are tried again, and deaths of templates are counted anew. An
        attempt whose process was already forked may still run the former trainable.
        """
        # `_adopted` is set before the lock is taken, so that a slot that awaits the former import
        # gives up the import and releases the lock.
        self._adopted = trainable.uuid
        with self._lock:
            self._retired += self._templates.values()
            self._templates, self._enabled = {}, self._allowed
            self._n_deaths = self._n_outdated = 0
        self.close_retired()

    def give_up(self, started: Started, reason: str) -> bool:
        """
        Give up warm starts because of a process that was forked from a template and died.

        Nothing is given up if an attempt forked from this template has begun (see
        `Progress.began`), or sent its `Ended`. If the study was given another trainable, only the
        template is given up.

        Returns:
            Whether warm starts or the template were given up. If so, the attempt must be started
            again, fresh.
        """
        template = started.template
        if template is None or template.is_proven:
            return False
        if not self._is_replaced(template.to_import.trainable.uuid):
            self._disable(reason)
        self._retire(template, None)
        return True

    def drop_idle(self) -> None:
        """End unused retired templates, and current templates that were idle for `IDLE_S`."""
        if not self._lock.acquire(blocking=False):  # another slot is making a template
            return
        try:
            for key, template in list(self._templates.items()):
                if not template.is_idle:
                    template.used_s = time.monotonic()
                elif time.monotonic() - template.used_s >= IDLE_S:
                    self._retired.append(self._templates.pop(key))
        finally:
            self._lock.release()
        self.close_retired()

    def close(self) -> None:
        """End all templates, and the attempts forked from them."""
        with self._lock:
            self._allowed = self._enabled = False
            templates = [*self._retired, *self._templates.values()]
            self._retired, self._templates = [], {}
        for template in templates:
            template.close()

    def _ready_template(self, to_import: TrainableImport) -> Template | None:
        """Return the template that can be forked now, if there is one; wait for no other slot."""
        if not self._may_be_warm(to_import) or not self._lock.acquire(blocking=False):
            return None
        try:
            template = self._templates.get(_key_of(to_import))
            if template is None or template.is_dead or not self._enabled:
                return None
            if template.to_import.trainable.uuid != to_import.trainable.uuid:
                return None
            template.used_s = time.monotonic()  # keep `drop_idle` from ending the template
            return template
        finally:
            self._lock.release()

    def _may_be_warm(self, to_import: TrainableImport) -> bool:
        trainable = to_import.trainable
        if trainable.kind == TrainableKind.COMMAND:
            return False
        return not to_import.holds_devices or self._warm_with_devices == trainable.uuid

    def _usable(self, to_import: TrainableImport) -> Template | None:
        """Return the template for an import, made if necessary; None if the start must be fresh."""
        if not self._may_be_warm(to_import):
            return None
        trainable, key = to_import.trainable, _key_of(to_import)
        with self._lock:  # other slots wait here during an import
            if self._is_replaced(trainable.uuid):
                return None
            template = self._templates.get(key)
            if template is not None and template.is_dead:
                self._drop_dead(template)
                template = None
            if template is None and self._enabled:
                template = self._make(to_import)
                if template is not None:
                    self._templates[key] = template
            if not self._enabled or template is None:
                return None
            template.used_s = time.monotonic()  # keep `drop_idle` from ending the template
            return template

    def _is_replaced(self, trainable_uuid: str) -> bool:
        return self._adopted not in (None, trainable_uuid)

    def _make(self, to_import: TrainableImport) -> Template | None:
        trainable_uuid = to_import.trainable.uuid
        output = self._pump.open(self._directory)
        try:
            process = self._forkserver.fork(
                ChildKind.TEMPLATE,
                partial(write_import, to_import),
                stdout=output.stdout,
                stderr=output.stderr,
            )
        except (FrameError, OSError):  # the fresh start that follows raises the same error
            output.finish()
            return None
        output.release()
        reason = self._await(process, trainable_uuid)
        if reason is None:
            return Template(process, output, to_import)
        process.kill()
        process.wait()
        process.channel.close()
        output.finish()
        if not self._is_stopping() and not self._is_replaced(trainable_uuid):
            if to_import.holds_devices:
                self._disable_devices(trainable_uuid, reason)
            else:
                self._disable(reason)
        return None

    def _await(self, process: ChildProcess, trainable_uuid: str) -> str | None:
        """Wait for an import to end or to be given up; return why no fork is possible, or None."""
        deadline_s = time.monotonic() + IMPORT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._is_stopping():
                return "the worker is stopping"
            if self._is_replaced(trainable_uuid):
                return "the study was given other code"
            try:
                frame = process.channel.receive(timeout_s=_TICK_S)
                answer = None if frame is None else read_readiness(frame)
            except (EOFError, OSError, FrameError):
                return f"the process that imported the trainable {process.wait(_TICK_S) or 'hung'}"
            match answer:
                case Ready():
                    return None
                case Unusable(reason=reason):
                    return reason
        return f"its import took more than {IMPORT_TIMEOUT_S:g} s"

    def _disable(self, reason: str) -> None:
        if self._enabled:
            self._enabled = False
            self._say(f"each trial imports the trainable anew, because {reason}")

    def _disable_devices(self, trainable_uuid: str, reason: str) -> None:
        self._warm_with_devices, self._fresh_with_devices = None, trainable_uuid
        self._say(f"each trial with devices imports the trainable anew, because {reason}")

    def _retire(self, template: Template, why: str | None) -> None:
        """
        Fork no more attempts from a template, and end it after its last attempt.

        After `DEATHS_LIMIT` templates in a row were retired before they forked an attempt, all
        attempts start fresh.
        """
        with self._lock:
            if template in self._templates.values():
                del self._templates[_key_of(template.to_import)]
                self._retired.append(template)
                self._n_outdated = 0 if template.has_forked else self._n_outdated + 1
                if self._n_outdated >= DEATHS_LIMIT:
                    self._disable(f"{why} each time")
                elif why is not None:
                    self._say(f"{why}; a new process imports the trainable")
        self.close_retired()

    def _drop_dead(self, template: Template) -> None:
        self._retired.append(self._templates.pop(_key_of(template.to_import)))
        self._n_deaths += 1
        if self._n_deaths >= DEATHS_LIMIT:
            self._disable(f"{self._n_deaths} processes that had imported it have died")

    def close_retired(self) -> None:
        """End retired templates whose last attempt has ended."""
        if not self._retired or not self._lock.acquire(blocking=False):
            return
        try:
            idle = [template for template in self._retired if template.is_idle]
            self._retired = [template for template in self._retired if template not in idle]
        finally:
            self._lock.release()
        for template in idle:
            template.close()
