"""
Open the database or study that a command works on, and close it afterwards.

The modules that need SQLAlchemy are imported inside the functions, so that the help of a command
does not load SQLAlchemy.
"""

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from studydb.cli.options import Storage
from studydb.domain.errors import StudyDiffers
from studydb.domain.text.display import visible

if TYPE_CHECKING:
    from studydb.db import Database
    from studydb.study import Study


def opened(storage: Storage, *, read_only: bool = False) -> "closing[Database]":
    """Connect to the database for one command."""
    from studydb.db import connect

    return closing(connect(storage.url, connections=1, read_only=read_only))


def opened_study(storage: Storage, name: str) -> "closing[Study]":
    """Load a study for one command."""
    from studydb.study import load_study

    return closing(load_study(name, storage=storage.url))


def created_study(storage: Storage, name: str, **options: Any) -> "closing[Study]":
    """
    Create a study for one command; with `load_if_exists`, load the study if it exists.

    Args:
        options: Further arguments of `create_study`.
    """
    from studydb.study import create_study

    with _differences_printed():
        return closing(create_study(name, storage=storage.url, **options))


@contextmanager
def _differences_printed() -> Iterator[None]:
    """Print a StudyDiffers warning as one line on stderr; leave other warnings to Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", StudyDiffers)
        show = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, StudyDiffers):
                click.echo(visible(f"studydb: {message}"), err=True)
            else:
                show(message, category, *where)

        warnings.showwarning = print_warning  # type: ignore[assignment]  # `*where` is 4 arguments
        yield
