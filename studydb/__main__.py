"""The console: `studydb …` and `python -m studydb …`."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from studydb.cli.commands import cli
from studydb.domain.errors import StudydbError
from studydb.domain.wording import visible
from studydb.domain.words import in_studydb

USAGE, INTERRUPTED, PIPE_BROKEN = 2, 130, 1


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """
    Run one command and exit.

    A user's mistake is one line on stderr; a traceback is a bug of ours.

    Args:
        arguments: Instead of the process's own.
    """
    _look_here_first()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # a stand-in for the stream, or a closed one
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        code = PIPE_BROKEN
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        answer = cli.main(arguments, prog_name="studydb", standalone_mode=False)
    except StudydbError as error:
        return _complain(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return USAGE
    except click.UsageError as error:
        return _complain(_with_help(error), USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return answer if isinstance(answer, int) else 0


def _complain(message: str, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    print(visible(f"studydb: {line}"), file=sys.stderr)  # noqa: T201  its business
    return code


def _with_help(error: click.UsageError) -> str:
    message = error.format_message().rstrip()
    message += "" if message.endswith((".", "?")) else "."
    if isinstance(error, click.NoSuchOption):
        message += in_studydb(error.option_name)
    where = error.ctx.command_path if error.ctx is not None else "studydb"
    return f"{message} See `{where} --help`."


def _look_here_first() -> None:
    """A script's folder, where `studydb` lies, comes first on sys.path; users mean theirs."""
    with suppress(FileNotFoundError):
        here = os.getcwd()  # noqa: PTH109  pathlib is slower to load than all else here
        if here not in sys.path[:1]:
            sys.path.insert(0, here)


def _silence_stdout() -> None:
    """Keep the interpreter's last flush from complaining about a reader that has gone."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
