"""
The template: a process that imports a study's trainable once, and from which attempts are forked.

The fork server starts a template like any other child: without the database's credentials and the
signing key, in a new process group, with its output captured. The first message on the channel
names the trainable to import. The template answers whether it is usable. A usable template then
takes requests to fork attempts over the same socket, as the fork server does; an unusable template
ends. A template is usable if it may be forked (see `fork_safety`) and the trainable does not demand
fresh starts (`train.studydb_start = "fresh"`). For attempts that hold devices, the trainable must
also allow warm starts (`train.studydb_start = "warm"`).
"""

import atexit
import gc
import os
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from msgspec import Struct, msgpack

from studydb.child import fork_safety, run
from studydb.child.channel import Channel, Frame, decode
from studydb.child.forking import ChildKind, ForkingServer
from studydb.child.job import TrainableImport
from studydb.child.staleness import Staleness
from studydb.child.streams import flush_streams, prepare_streams
from studydb.processes import fork, name_process, process_name

NAME = "studydb-imports"
"""The process name of a template, as `ps` shows it."""

_DEFERRED_MODULES = {"torch": "torch._dynamo"}
"""
Modules that a library imports late, by the library's name.

PyTorch imports `torch._dynamo`, and with it 850 other modules, for the first optimizer. If the
template did not import these modules, each trial with an optimizer would: the import takes 3 s with
PyTorch 2.11. A template first imports them in a fork, to check that it can still be forked after
this import.
"""

_TRY_S = 30
"""
The template does not import a deferred module whose import takes longer than this. A template has
120 s for all its imports.
"""


class Ready(Struct, frozen=True, tag="ready"):
    """Attempts may be forked."""


class Unusable(Struct, frozen=True, tag="unusable"):
    """No attempt may be forked from this template; `reason` says why."""

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
    prepare_streams()
    run.end_with(_serve, channel)


def _serve(channel: Channel) -> int:
    frame = channel.receive()
    assert frame is not None
    to_import = _imports.decode(frame.payload)
    before, began_ns = fork_safety.take_snapshot(), time.time_ns()
    try:
        run.prepare(to_import)
        function = run.import_trainable(to_import)
    except BaseException as cause:  # noqa: BLE001  a fresh start raises the error again, in a trial
        traceback.print_exc()
        _answer(channel, Unusable(f"its import raised {type(cause).__name__}"))
        return 1
    check = partial(fork_safety.reason_against, before, uses_devices=to_import.holds_devices)
    reason = _reason_against(function, to_import) or check()
    if reason is None:
        _import_deferred_modules(check)
        reason = check()
    if reason is not None:
        _answer(channel, Unusable(reason))
        return 0
    staleness = Staleness(began_ns)
    flush_streams()  # without this, every child would print what the buffers hold
    gc.collect()
    gc.freeze()  # without this, a garbage collection in a child would copy every shared page
    _answer(channel, Ready())
    begin = partial(_begin, run.Imported(function, staleness), process_name())
    name_process(NAME)
    return ForkingServer(
        channel.detach(),
        parent_pid=os.getppid(),
        begin={ChildKind.ATTEMPT: begin},
        outdated=staleness.reason,
        at_end=atexit._run_exitfuncs,  # noqa: SLF001  the functions that the import has registered
    ).serve()


def _reason_against(function: Callable[..., Any], to_import: TrainableImport) -> str | None:
    if to_import.holds_devices and not run.starts_warm_with_devices(function):
        return f"its {run.START_ATTRIBUTE} does not allow warm starts of trials with devices"
    return run.reason_for_fresh_starts(function)


def _import_deferred_modules(check: Callable[[], str | None]) -> None:
    """Import the deferred modules of the imported libraries if a fork is safe afterwards."""
    for library, module in _DEFERRED_MODULES.items():
        if library in sys.modules and module not in sys.modules and _is_safe(module, check):
            import_module(module)


def _is_safe(module: str, check: Callable[[], str | None]) -> bool:
    """Import the module in a fork; return whether this process may be forked after that import."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_TRY_S)  # ends this fork if the import hangs
            import_module(module)
            code = 0 if check() is None else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _begin(imported: run.Imported, name: str, channel: Channel) -> None:
    name_process(name)
    _forget_exit_functions()
    imported.staleness.fork()
    run.end_with(partial(run.serve, imported=imported), channel)


def _forget_exit_functions() -> None:
    """Forget the import's exit functions: the template runs them when its attempts have ended."""
    atexit._clear()  # noqa: SLF001  there is no public function
    for known in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001
        known.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # noqa: SLF001


def _answer(channel: Channel, readiness: Readiness) -> None:
    channel.send(Frame(msgpack.encode(readiness)))
