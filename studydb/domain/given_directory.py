"""The directory that studydb makes for a checkpoint, and the case that it cannot be made."""

from os import fspath
from pathlib import Path
from typing import Self

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


class UnmadeDirectory(Struct, frozen=True):
    """
    Stands for a checkpoint for which this host could not make a directory.

    As after a failure of the store, training continues and any earlier checkpoint is kept.

    Attributes:
        error: What is shown to people as the error of the checkpoint.
    """

    error: str

    @classmethod
    def because(cls, cause: OSError) -> Self:
        return cls(
            f"This host could not make the directory of a checkpoint: {cause}. Training continues, "
            "and any earlier checkpoint is kept."
        )
