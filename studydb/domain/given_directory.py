"""A checkpoint's directory, which studydb may move instead of copying it."""

from os import fspath
from pathlib import Path

from msgspec import Struct


class GivenDirectory(Struct, frozen=True):
    """
    A directory that studydb itself has made for a checkpoint, and therefore may move.

    A directory of a user is copied, because the user's code may change the directory after the
    report.
    """

    path: Path

    def __fspath__(self) -> str:
        return fspath(self.path)
