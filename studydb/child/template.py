"""
The template: a process that imports a study's trainable once, and from which attempts are forked.

The fork server starts a template like any other child: without credentials, in a new process group,
with its output captured. The first message on the channel names the trainable to import. The
template answers whether it is usable, and then takes requests over the same socket, as the fork
server does. A template is usable if it may be forked (see `fork_safety`) and the trainable does not
demand fresh starts (`train.studydb_start = "fresh"`).
"""

import atexit
import gc
import os
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct, msgpack

from studydb.child import fork_safety, run, sources
from studydb.child.channel import Channel, Frame, decode
from studydb.child.forking import ChildKind, ForkingServer
from studydb.child.job import TrainableImport
from studydb.domain.records import Start
from studydb.processes import name_process, process_name

START_ATTRIBUTE = "studydb_start"
"""An attribute of the trainable; if it is "fresh", each attempt imports the trainable."""

NAME = "studydb-imports"
"""The process name of a template, as `ps` shows it."""

GROWTH_FACTOR = 2.0
GROWTH_BYTES = 64 << 20
"""A template is replaced when its memory exceeds 64 MiB plus twice its memory after the import."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Ready(Struct, frozen=True, tag="ready"):
    """Attempts may be forked; the import took `import_s` seconds."""

    import_s: float


class Unusable(Struct, frozen=True, tag="unusable"):
    """All attempts must start fresh; `reason` says why."""

    reason: str


Readiness = Ready | Unusable

_imports = msgpack.Decoder(TrainableImport)
_answers: msgpack.Decoder[Readiness] = msgpack.Decoder(Readiness)


def write_import(to_import: TrainableImport) -> Frame:
    """Encode the first message to a template."""
    return Frame(b"", msgpack.encode(to_import))


def read_readiness(frame: Frame) -> Readiness:
    """Decode a template's answer to its first message, or raise FrameError."""
    return decode(_answers, frame, sender="template")


def main(channel: Channel) -> None:
    """Import the trainable that the first message names; fork attempts until the parent ends."""
    run.prepare_streams()
    run.end_with(_serve, channel)


def _serve(channel: Channel) -> int:
    frame = channel.receive()
    assert frame is not None
    to_import = _imports.decode(frame.payload)
    before, began_ns, began_s = fork_safety.take_snapshot(), time.time_ns(), time.monotonic()
    try:
        run.prepare(to_import)
        function = run.import_trainable(to_import)
    except BaseException as cause:  # noqa: BLE001  a fresh start raises the error again, in a trial
        traceback.print_exc()
        _answer(channel, Unusable(f"its import raised {type(cause).__name__}"))
        return 1
    reason = _asks_for_fresh(function) or fork_safety.reason_against(before)
    if reason is not None:
        _answer(channel, Unusable(reason))
        return 0
    outdated = _Watch(began_ns).reason
    run.flush_streams()  # without this, every child would print what the buffers hold
    gc.collect()
    gc.freeze()  # without this, a garbage collection in a child would copy every shared page
    _answer(channel, Ready(time.monotonic() - began_s))
    begin = partial(_begin, function, process_name())
    with suppress(OSError):
        name_process(NAME)
    return ForkingServer(
        channel.detach(),
        parent_pid=os.getppid(),
        begin={ChildKind.ATTEMPT: begin},
        outdated=outdated,
        at_end=atexit._run_exitfuncs,  # noqa: SLF001  the functions that the import has registered
    ).serve()


def _begin(function: Callable[..., Any], name: str, channel: Channel) -> None:
    with suppress(OSError):
        name_process(name)
    _forget_exit_functions()
    run.end_with(partial(run.serve, function=function), channel)


def _forget_exit_functions() -> None:
    """Forget the import's exit functions: the template runs them when its attempts have ended."""
    atexit._clear()  # noqa: SLF001  there is no public function
    for known in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
        known.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # noqa: SLF001


def _answer(channel: Channel, readiness: Readiness) -> None:
    channel.send(Frame(msgpack.encode(readiness)))


def _asks_for_fresh(function: Callable[..., Any]) -> str | None:
    asks = getattr(function, START_ATTRIBUTE, None) == Start.FRESH
    return f"its {START_ATTRIBUTE} asks for fresh starts" if asks else None


class _Watch:
    """Detects that a template must be replaced: its files have changed, or it has grown."""

    def __init__(self, began_ns: int) -> None:
        self._files = sources.imported_files()
        # A file that was changed during the import may be newer on disk than in memory. A time in
        # the future comes from another clock, so the file does not count as changed.
        now_ns = time.time_ns()
        late = (file for file in self._files if began_ns <= file.mtime_ns <= now_ns)
        self._late = next(late, None)
        self._first_bytes = _resident_bytes()

    def reason(self) -> str | None:
        if file := self._late or sources.changed(self._files):
            return f"{file.path} has changed"
        if _resident_bytes() > self._first_bytes * GROWTH_FACTOR + GROWTH_BYTES:
            return "the template has grown"
        return None


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  read at each fork
        return int(file.read().split()[1]) * _PAGE_BYTES
