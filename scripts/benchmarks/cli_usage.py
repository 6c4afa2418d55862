"""CPU time and memory of a studydb command."""

import os
import subprocess
import sys
from resource import struct_rusage


def run(url: str, *arguments: str) -> struct_rusage:
    """
    Run a command of `studydb` on a database; return the command's CPU times and peak memory.

    Raises:
        RuntimeError: The command failed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "studydb", *arguments],
        env={**os.environ, "STUDYDB_STORAGE": url},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"studydb {' '.join(arguments)} ended with {process.returncode}.")
    return used
