"""The console: `studydb …` and `python -m studydb …`."""

import gc
import os
import sys

TYPE_CHECKING = False
"""
Type checkers assume that this variable is true (see `studydb/__init__.py`). `typing` is not
imported, because each import at the top slows every `studydb report`.
"""

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

INTERRUPTED, PIPE_BROKEN = 130, 1

NEW_OBJECTS = 100_000
"""
Python starts a garbage collection when it has made this many objects more than it has freed. The
imports of a command make about as many objects, and none of them becomes garbage. With Python
3.11's threshold of 700 objects, garbage collections take a seventh of the time in which a command
starts.
"""


def main(arguments: "Sequence[str] | None" = None) -> "NoReturn":
    """
    Run one command and exit. If `arguments` are given, they replace the process's arguments.

    A user's mistake is printed as one line on stderr; a traceback means a bug of studydb.
    """
    words = sys.argv[1:] if arguments is None else arguments
    _open_closed_streams()
    try:
        if [*words[:1]] == ["report"] and not {"-h", "--help"} & set(words):
            from studydb.report_client import main as report  # noqa: PLC0415  without `click`

            sys.exit(report(words[1:]))
        _prepare()
        # Imported here, so that Ctrl-C during the import gives no traceback.
        from studydb.cli.console import run  # noqa: PLC0415

        code = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        code = PIPE_BROKEN
    except OSError as error:
        import errno  # noqa: PLC0415  `studydb report` does not need it

        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _silence_stdout()
        print(  # noqa: T201
            f"studydb: The output cannot be written: {error.strerror}. "
            "If the command has changed the database, the changes are kept.",
            file=sys.stderr,
        )
        code = PIPE_BROKEN
    sys.exit(code)


def _open_closed_streams() -> None:
    """
    Open /dev/null in place of a closed stdin, stdout or stderr.

    Otherwise a socket or a file would get the stream's number, and the processes of trials would
    write their output into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is `number`
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _prepare() -> None:
    import atexit  # noqa: PLC0415  `studydb report` does not need it

    gc.set_threshold(NEW_OBJECTS)
    # Without `gc.freeze`, the interpreter looks for garbage among all imported objects at its exit,
    # which takes a fifth of the CPU time of a command that reads the database.
    atexit.register(gc.freeze)
    _put_working_directory_first()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        except (AttributeError, ValueError):  # the stream was replaced or closed
            continue


def _put_working_directory_first() -> None:
    """Put the working directory first on sys.path, before the console script's directory."""
    try:
        working_directory = os.getcwd()  # noqa: PTH109  importing pathlib takes time
    except FileNotFoundError:
        return
    if working_directory not in sys.path[:1]:
        sys.path.insert(0, working_directory)


def _silence_stdout() -> None:
    """Replace stdout by /dev/null, so that the interpreter's last flush does not fail."""
    from contextlib import suppress  # noqa: PLC0415  each import slows `studydb report`

    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
