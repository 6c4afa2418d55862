"""
The fork server: a small process from which fresh attempts, templates and deciders are forked.

The worker starts the fork server as a program. This program inherits no connection to the database,
and its environment holds neither the database's credentials nor the signing key. So no child
inherits a connection, the credentials or the key. The fork server has imported the modules that
every child needs, so that a child starts in milliseconds; it imports numpy before it forks the
first fresh attempt. It has one Python thread, never imports the user's code, and takes requests
only from its worker.
"""

import gc
import importlib
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from studydb.child import run, template
from studydb.child.channel import Channel
from studydb.child.forking import ChildKind, ForkingServer


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """
    Serve requests until the worker ends or closes the socket.

    Args:
        arguments: The socket's descriptor and the worker's pid; None for `sys.argv`.
    """
    control, supervisor_pid = map(int, sys.argv[1:] if arguments is None else arguments)
    server = ForkingServer(
        socket.socket(fileno=control),
        parent_pid=supervisor_pid,
        begin={
            ChildKind.ATTEMPT: run.main,
            ChildKind.TEMPLATE: template.main,
            ChildKind.DECIDER: _decide,
        },
        prepare=_import_numpy,
    )
    _freeze()
    server.serve()


def _import_numpy(kind: ChildKind) -> None:
    """
    Import numpy for fresh attempts; a template imports it only if the user's module does.

    If the import fails, for example because the host lacks memory, attempts that need numpy import
    it themselves.
    """
    if kind is ChildKind.ATTEMPT and "numpy.random" not in sys.modules:
        with suppress(Exception):
            importlib.import_module("numpy.random")  # takes 0.1 s and 20 MB
        _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()  # without this, a garbage collection in a child would copy every shared page


def _decide(channel: Channel) -> None:
    from studydb.child import decider  # noqa: PLC0415  most studies need no decider

    decider.main(channel)


if __name__ == "__main__":
    main()
