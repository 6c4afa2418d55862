"""A checkpoint's directory, which studydb may move instead of copying it."""

from dataclasses import dataclass
from os import fspath
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GivenDirectory:
    """
    A directory that studydb itself has made for a checkpoint, and therefore may move.

    The directories of users are copied, because their code may change them after the report.
    """

    path: Path

    def __fspath__(self) -> str:
        return fspath(self.path)
