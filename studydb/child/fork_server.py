"""
The fork server: a small process from which every attempt's process, and every template, is forked.

The supervisor starts it before any database connection exists, with an environment without
credentials, so that no child can inherit what it is not to have; and it has imported what every
child needs, so that a child costs milliseconds. It never imports the user's code, has one thread,
and believes only the supervisor.
"""

import gc
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from studydb.child import run, template
from studydb.child.forking import ChildKind, ForkingServer


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve: the socket's descriptor and the supervisor's pid are the arguments."""
    control, supervisor_pid = map(int, sys.argv[1:] if arguments is None else arguments)
    server = ForkingServer(
        socket.socket(fileno=control),
        parent_pid=supervisor_pid,
        begin={ChildKind.ATTEMPT: run.main, ChildKind.TEMPLATE: template.main},
    )
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    server.serve()


if __name__ == "__main__":
    main()
