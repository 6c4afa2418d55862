"""The first line of a script, `#!INTERPRETER`, by which the system starts the script."""

import re
from pathlib import Path

from studydb.domain.errors import TrainableError
from studydb.domain.text.display import shortened

_LINE_BYTES = 256
"""Linux reads at most this many bytes of the first line."""


def refuse_windows_line_ends(path: Path) -> None:
    """
    Refuse a script whose first line has a carriage return after the interpreter or `env NAME`.

    No host can run such a script. A carriage return after any other argument is accepted, because
    some interpreters, such as perl, ignore it.

    Raises:
        TrainableError: The script has such a first line.
    """
    line = _first_line(path)
    if line is None or not line.endswith("\r"):
        return
    words = re.split(" +", line)
    if len(words) == 1 or words[1:] == ["\r"] or (words[0].endswith("/env") and not words[2:]):
        raise TrainableError(_windows_line_ends(path, line))


def why_not_started(path: Path) -> str:
    """Return why the system finds the file of a program, but cannot start the program."""
    line = _first_line(path)
    if line is None:
        return (
            f"{path} needs a dynamic loader that does not exist on this host. Build the program "
            "for this host's system."
        )
    interpreter, _, _ = line.partition(" ")
    if interpreter.endswith("\r"):
        return _windows_line_ends(path, line)
    if Path(interpreter).exists():
        return (
            f"The first line of {path} names the interpreter {shortened(interpreter, 200)!r}, "
            "which exists on this host but cannot be started. Start the interpreter by hand to see "
            "why."
        )
    return (
        f"The first line of {path} names the interpreter {shortened(interpreter, 200)!r}, which "
        "does not exist on this host. Correct the line, or install the interpreter."
    )


def _windows_line_ends(path: Path, line: str) -> str:
    return (
        f"{path} has Windows line ends, so its first line names the interpreter "
        f"{shortened(line, 200)!r}, which does not exist. Convert the line ends, for example with "
        "dos2unix."
    )


def _first_line(path: Path) -> str | None:
    """Return the text after `#!` in the first line; None if the file does not begin with `#!`."""
    try:
        with path.open("rb") as file:
            line = file.readline(_LINE_BYTES)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    return line[2:].rstrip(b"\n").decode(errors="replace").strip(" \t").replace("\t", " ")
