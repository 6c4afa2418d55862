"""Run one command; print an error as one line without a traceback."""

import os
import sys
from collections.abc import Sequence

import click
from click.core import ParameterSource

from studydb.cli.commands import cli
from studydb.domain.errors import StudydbError, UsageError
from studydb.domain.text.display import visible
from studydb.domain.text.other_tools import in_studydb

USAGE, INTERRUPTED = 2, 130


def run(arguments: Sequence[str] | None) -> int:
    """
    Run a command; print an error as one line on stderr.

    Args:
        arguments: The words after `studydb`; None for the process's own arguments.

    Returns:
        The exit code.
    """
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        answer = cli.main(arguments, prog_name="studydb", standalone_mode=False)
    except StudydbError as error:
        return _print_error(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return USAGE
    except click.UsageError as error:
        return _print_error(_with_help(error), USAGE)
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return answer if isinstance(answer, int) else 0


def _print_error(message: str, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    print(visible(f"studydb: {line}"), file=sys.stderr)  # noqa: T201  for people
    return code


def _with_help(error: click.UsageError) -> str:
    message = error.format_message().rstrip()
    if variable := _variable(error):
        message = f"${variable} is wrong. {message}"
    message += "" if message.endswith((".", "?")) else "."
    if isinstance(error, click.NoSuchOption):
        message += in_studydb(error.option_name)
    where = error.ctx.command_path if error.ctx is not None else "studydb"
    return f"{message} See `{where} --help`."


def _variable(error: click.UsageError) -> str | None:
    """Find the environment variable that gave the wrong value; None if an option gave it."""
    param, ctx = getattr(error, "param", None), error.ctx
    if not isinstance(param, click.Option) or ctx is None or param.name is None:
        return None
    if ctx.get_parameter_source(param.name) is not ParameterSource.ENVIRONMENT:
        return None
    named = [param.envvar] if isinstance(param.envvar, str) else [*(param.envvar or ())]
    if param.allow_from_autoenv and ctx.auto_envvar_prefix:
        named.append(f"{ctx.auto_envvar_prefix}_{param.name.upper()}")
    return next((name for name in named if name in os.environ), None)


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse arguments and STUDYDB_* variables that are not Unicode."""
    given = [("The argument", text) for text in arguments]
    given += [(f"${key},", text) for key, text in os.environ.items() if key.startswith("STUDYDB_")]
    for what, text in given:
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(text).decode(errors="backslashreplace")
            raise UsageError(
                f"{what} '{shown}' is not Unicode text; write names and URLs in UTF-8."
            ) from None
