"""Options, arguments and types that several commands share."""

import shlex
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from studydb.domain.errors import InvalidName
from studydb.domain.sizes import size_of
from studydb.domain.text.display import visible
from studydb.domain.text.names import check_trial_name
from studydb.settings import storage_url

LARGEST_NUMBER = 2**63 - 1
"""The largest integer that the databases can store, so that no trial has a larger number."""


@dataclass(frozen=True, slots=True)
class Storage:
    """
    The database that a command uses.

    Attributes:
        url: The database's URL with its password; this URL is never shown.
        typed: Whether --storage was typed; if so, printed commands must contain --storage, too.
    """

    url: str = field(repr=False)
    typed: bool

    def command_suffix(self, masked: str) -> str:
        """
        Return " --storage URL" to append to a command; "" if --storage was not typed.

        Args:
            masked: The URL with its password masked.
        """
        return f" --storage {shlex.quote(masked)}" if self.typed else ""


def _read_storage(ctx: click.Context, param: click.Parameter, value: str | None) -> Storage:  # noqa: ARG001
    root = ctx.find_root()
    typed = value is not None or (
        root.get_parameter_source("storage") is ParameterSource.COMMANDLINE
    )
    return Storage(storage_url(value or root.params.get("storage")), typed)


POSITIVE = click.IntRange(min=1)

storage_option = click.option(
    "--storage",
    metavar="URL",
    callback=_read_storage,
    allow_from_autoenv=False,  # the root command reads $STUDYDB_STORAGE
    help="The database: sqlite:///file.db or postgresql://….  [env var: STUDYDB_STORAGE]",
)


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    envvar="STUDYDB_FORMAT",
    allow_from_autoenv=False,  # all commands share one variable
    help="The output's format.",
)


class Spec(click.ParamType[str]):
    """A text, such as a spec; ";" separates several texts in one environment variable."""

    name = "text"
    envvar_list_splitter = ";"


class TrialWord(click.ParamType[int | str]):
    """The number of a trial, or its name; a text of digits is always read as a number."""

    name = "trial"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text.isascii() and text.isdigit():
            number = int(text.lstrip("0")[:20] or "0")  # `int` refuses more than 4,300 digits
            if number > LARGEST_NUMBER:
                self.fail(f"{text!r} is too large for the number of a trial.", param, ctx)
            return number
        try:
            return check_trial_name(text)
        except InvalidName:
            self.fail(
                f"{visible(text)!r} is neither a trial number nor a trial's name; "
                "trial numbers begin at 0.",
                param,
                ctx,
            )


class Bytes(click.ParamType[int]):
    """A size in bytes, such as 1024, 500M or 10GB; K, M, G and T are powers of 1024."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size_bytes = size_of(str(value))
        if size_bytes is None:
            self.fail(f"{value!r} is not a size; write 500M, 4G or a number of bytes.", param, ctx)
        return size_bytes


study_argument = click.argument("name", metavar="NAME")
trial_argument = click.argument("trial", metavar="TRIAL", type=TrialWord())
