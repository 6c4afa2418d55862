"""Opening what a command works on, and closing it again."""

from collections.abc import Iterator
from contextlib import contextmanager

from studydb.cli.options import Storage
from studydb.db import Database, connect
from studydb.study import Study, load_study


@contextmanager
def opened(storage: Storage, *, read_only: bool = False) -> Iterator[Database]:
    """Connect for one command."""
    database = connect(storage.url, connections=1, read_only=read_only)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def opened_study(storage: Storage, name: str) -> Iterator[Study]:
    """Load a study for one command."""
    study = load_study(name, storage=storage.url)
    try:
        yield study
    finally:
        study.close()
