"""
The fork server: a small process from which fresh attempts and templates are forked.

The supervisor starts it before it connects to the database, and without credentials in its
environment, so that no child can inherit either. It has imported the modules that every child
needs, so that a child starts in milliseconds. It has one thread, never imports the user's code,
and takes requests only from the supervisor.
"""

import gc
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from studydb.child import run, template
from studydb.child.forking import ChildKind, ForkingServer


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve; the arguments are the socket's descriptor and the supervisor's pid."""
    control, supervisor_pid = map(int, sys.argv[1:] if arguments is None else arguments)
    server = ForkingServer(
        socket.socket(fileno=control),
        parent_pid=supervisor_pid,
        begin={ChildKind.ATTEMPT: run.main, ChildKind.TEMPLATE: template.main},
    )
    gc.collect()
    gc.freeze()  # a collection in a child would write to every shared page, and so copy it
    server.serve()


if __name__ == "__main__":
    main()
