"""`try`: run one trial in the foreground, and store nothing."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import click

from studydb.cli.control import read_values
from studydb.cli.formatting import assignments
from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.cli.printing import print_fields
from studydb.domain.errors import CheckpointError, InvalidReport, StudydbError
from studydb.domain.failures import failure_of
from studydb.domain.text.display import printed, value_text, visible

if TYPE_CHECKING:
    from studydb.domain.metrics import Result

FAILED = 1


class _Terminated(SystemExit):
    """The exit of this process on SIGTERM; any other SystemExit comes from the user's code."""


class _Output:
    """
    Keeps the error of a line that could not be written to stdout.

    Attributes:
        error: Why a line could not be written: the disk is full, for example. This is no error of
            the user's code, although the code may run on with it or raise another error.
    """

    error: OSError | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the error with which the output fails within the `with` block."""
        try:
            yield
        except OSError as error:
            self.error = error
            raise


@click.command("try")
@study_argument
@click.argument("params", nargs=-1, metavar="[PARAM=VALUE]…")
@click.option(
    "--debug", is_flag=True, help="Start Python's debugger where your Python code failed."
)
@storage_option
def try_(*, name: str, params: Sequence[str], debug: bool, storage: Storage) -> int:
    """
    Run one trial of NAME here, in the foreground; nothing is counted or stored.

    Parameters that are not given are drawn at random. An error of your code is printed with its
    traceback.
    """
    from studydb.study.trying import try_trainable

    # SIGTERM raises an exception, so that a `finally` block kills the processes of a command.
    signal.signal(signal.SIGTERM, _end)
    given, output = read_values(params), _Output()
    with opened_study(storage, name) as study:
        metric, space = study.record.objective.metric, study.record.space

        def show_params(params: Mapping[str, Any]) -> None:
            with output.writing():
                print_fields({"params": assignments(space.flatten(params)) or None})

        def show(result: "Result", saved: bool) -> None:  # noqa: FBT001  `try_trainable` calls it
            others = "".join(f"  {key}={value!r}" for key, value in result.metrics.items())
            note = "  (a checkpoint, not stored)" if saved else ""
            line = f"step {result.step}: {metric} {value_text(result.value)}{others}{note}"
            with output.writing():
                click.echo(visible(line))

        try:
            try_trainable(
                study.record,
                given,
                workdir=Path.cwd(),
                stores=study.database.locations.checkpoint_stores(study.record),
                on_start=show_params,
                on_report=show,
            )
        except _Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            if output.error is not None:
                raise output.error from None
            return _explain(error, debug=debug)
    click.echo("The trial is complete; nothing was stored.")
    return 0


def _end(number: int, _: object) -> Never:
    raise _Terminated(128 + number)


def _explain(error: Exception | SystemExit, *, debug: bool) -> int:
    """Say why the trial did not complete; raise an error that has no cause in the user's code."""
    from studydb.child.run import exit_message
    from studydb.trainables import GivenBack, ProcessLost

    match error:
        case InvalidReport() | CheckpointError():
            return _fail(error, debug=debug)
        case StudydbError() | BrokenPipeError():
            raise error
        case SystemExit():
            message = exit_message(error)
        case GivenBack() | ProcessLost():
            message = str(error)
        case _:
            return _fail(error, debug=debug)
    click.echo(visible(f"studydb: {message}"), err=True)
    return FAILED


def _fail(error: Exception, *, debug: bool) -> int:
    trace = failure_of(error).traceback
    # An error of a command, or of a value that the code has returned, has no line of Python code.
    has_line = not hasattr(error, "tail") and "\n  File " in trace
    if has_line:
        click.echo(printed(trace), err=True, nl=False)
    else:
        click.echo(visible(f"studydb: {error}"), err=True)
    if debug and has_line:
        import pdb  # noqa: T100  the user asks for the debugger

        pdb.post_mortem(error.__traceback__)
    sys.stdout.flush()
    return FAILED
