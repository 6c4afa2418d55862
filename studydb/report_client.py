"""
`studydb report`: report from within a command, over the socket that the trial's process serves.

This module imports only a few small modules of the standard library: a script may run it at every
step, and each import takes milliseconds.
"""

import os
import sys
from _socket import AF_UNIX, socket  # the module `socket` would take 5 ms more

TYPE_CHECKING = False
"""Type checkers assume that this variable is true. Importing `typing` would take 5 ms."""

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

GO_ON, NO_RUNNER, USAGE, END_NOW, LOST = 0, 1, 2, 10, 11

SOCKET = "STUDYDB_SOCKET"
"""The environment variable that holds the path of the socket."""

_GO = b'{"go": true}\n'
"""The usual answer, which is recognized without an import of `json`."""


class NoRunner(Exception):
    """A report has no answer: the command runs in no trial, or the trial's process is gone."""


def exchange(message: str) -> "dict[str, Any]":
    """
    Send a report in JSON, and wait for the answer.

    If a report is judged, or saves a checkpoint to a directory or the database, the report is
    stored before it is answered.

    Returns:
        {"go": True}; {"go": False, "why": …}; or {"error": …, "type": …} for a refused report.

    Raises:
        NoRunner: The report has no answer.
    """
    path = os.environ.get(SOCKET)
    if not path:
        raise NoRunner(
            f"${SOCKET} is not set. `studydb report` is for commands that a worker runs."
        )
    client, answer = socket(AF_UNIX), b""
    try:
        client.connect(path)
        client.sendall(message.encode() + b"\n")
        while not answer.endswith(b"\n"):
            piece = client.recv(4096)
            if not piece:
                raise NoRunner("The trial's process has ended.")
            answer += piece
    except OSError as cause:
        raise NoRunner(f"The trial's process does not answer at {path}: {cause}.") from None
    finally:
        client.close()
    if answer == _GO:
        return {"go": True}
    import json  # noqa: PLC0415  see `_GO`

    found: dict[str, Any] = json.loads(answer)
    return found


def main(arguments: "Sequence[str]") -> int:
    """Run `studydb report METRIC=VALUE … [--step N] [--save]`; return the exit code."""
    try:
        message = read_arguments(arguments)
        answer = exchange(as_json(message))
    except ValueError as error:
        return _complain(error, USAGE)
    except NoRunner as error:
        return _complain(error, NO_RUNNER)
    if "error" in answer:
        return _complain(answer["error"], USAGE)
    if answer["go"]:
        return GO_ON
    return LOST if answer.get("why") == "lost" else END_NOW


def read_arguments(arguments: "Sequence[str]") -> "dict[str, Any]":
    """
    Read the report from the words of the command line.

    Raises:
        ValueError: The words are not a report; for example, one of them is neither METRIC=VALUE
            nor a known option, or a name is given twice. The error's message is for people.
    """
    message: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if word == "--":
            continue
        if word == "--save":
            message["checkpoint"] = True
        elif word == "--step" or word.startswith("--step="):
            text = word[7:] if word != "--step" else next(words, "")
            if not text.isdecimal():
                raise ValueError(f"--step is {text!r}; give the number of the step.")
            _add(message, "training_iteration", int(text))
        else:
            name, equals, text = word.partition("=")
            if not equals or not name or name.startswith("-"):
                raise ValueError(f"{word!r} is not METRIC=VALUE. See `studydb report --help`.")
            if name == "checkpoint":
                raise ValueError("A metric cannot be called checkpoint; --save saves a checkpoint.")
            _add(message, name, _value(text))
    if not message.keys() - {"checkpoint", "training_iteration"}:
        raise ValueError(
            "Give at least one metric, such as error=0.1. See `studydb report --help`."
        )
    return message


def _add(message: "dict[str, Any]", name: str, value: "Any") -> None:
    if name in message:
        what = "The step" if name == "training_iteration" else f"Metric {name!r}"
        raise ValueError(f"{what} is given twice. Give each value once in a report.")
    message[name] = value


def as_json(message: "Mapping[str, str | float]") -> str:
    """Write a report as JSON; importing `json` would take 4 ms."""
    fields = [f"{_quoted(name)}: {_value_as_json(value)}" for name, value in message.items()]
    return f"{{{', '.join(fields)}}}"


def _value_as_json(value: str | float) -> str:
    if isinstance(value, str):
        return _quoted(value)
    text = repr(value)
    return _NAMES_IN_JSON.get(text, text)


_NAMES_IN_JSON = {
    "True": "true",
    "False": "false",
    "nan": "NaN",
    "inf": "Infinity",
    "-inf": "-Infinity",
}


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if " " <= char <= "~" and char not in '"\\':
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_WORDS = {"true": True, "false": False, "True": True, "False": False}
"""The words that are read as booleans: the spellings of JSON and of Python."""


def _value(text: str) -> "Any":
    """Read a number, or `true` or `false`; other texts stay texts."""
    if text in _WORDS:
        return _WORDS[text]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _complain(error: object, code: int) -> int:
    print(f"studydb: {error}", file=sys.stderr)  # noqa: T201  for people
    return code
