"""CPU time and memory of a studydb command."""

import os
import socketserver
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import struct_rusage
from threading import Thread

REPORT, INTERPRETER = "studydb report", "python -c pass"


def run(url: str, *arguments: str) -> struct_rusage:
    """
    Run a command of `studydb` on a database; return the command's CPU times and peak memory.

    Raises:
        RuntimeError: The command failed.
    """
    command = [sys.executable, "-m", "studydb", *arguments]
    return _run(command, {**os.environ, "STUDYDB_STORAGE": url})


def cpu_of_reports_s(rounds: int) -> dict[str, list[float]]:
    """
    Measure the user plus system time of `studydb report` and of `python -c pass`, in turns.

    Each command first runs once untimed and writes its bytecode to a temporary folder, because an
    installed studydb has its bytecode already.
    """
    with tempfile.TemporaryDirectory(prefix="studydb-report-") as folder:
        path = str(Path(folder, "socket"))
        environment = {**os.environ, "STUDYDB_SOCKET": path, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        commands = {
            REPORT: [str(Path(sys.executable).with_name("studydb")), "report", "error=0.1"],
            INTERPRETER: [sys.executable, "-c", "pass"],
        }
        with socketserver.UnixStreamServer(path, _Answer) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            for command in commands.values():
                _run(command, environment)  # writes the bytecode
            used = [
                {name: cpu_s(_run(command, environment)) for name, command in commands.items()}
                for _ in range(rounds)
            ]
            server.shutdown()
    return {name: [one[name] for one in used] for name in commands}


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b'{"go": true}\n')


def cpu_s(used: struct_rusage) -> float:
    """User plus system time in seconds."""
    return used.ru_utime + used.ru_stime


def _run(command: Sequence[str], environment: dict[str, str]) -> struct_rusage:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    return used
