"""The threads of fsspec, the library behind the remote stores."""

import sys
from threading import Thread


def library_threads() -> set[Thread]:
    """
    Return the running threads of fsspec's event loop and of the loop's executor.

    They run no code of the user. The executor's threads look up the addresses of hosts.
    """
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is None:
        return set()
    executor = getattr(asyn.loop[0], "_default_executor", None)
    threads = {asyn.iothread[0], *getattr(executor, "_threads", ())}
    return {thread for thread in threads if thread is not None and thread.is_alive()}
