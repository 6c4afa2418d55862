"""A directory for a checkpoint that its maker no longer needs."""

from dataclasses import dataclass
from os import fspath
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GivenDirectory:
    """
    A checkpoint's directory that studydb itself has made for it, and that may be moved.

    The directories of users are copied, because their code may change them after the report.
    """

    path: Path

    def __fspath__(self) -> str:
        return fspath(self.path)
