"""The threads by which the libraries of remote stores work."""

import sys
from threading import Thread


def library_threads() -> set[Thread]:
    """
    Return the running threads of fsspec's event loop.

    They run no code of the user. The loop has an executor, whose threads look up names of hosts.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is None:
        return set()
    executor = getattr(asyn.loop[0], "_default_executor", None)
    threads = {asyn.iothread[0], *getattr(executor, "_threads", ())}
    return {thread for thread in threads if thread is not None and thread.is_alive()}
