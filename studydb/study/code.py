"""Describing the code that a study runs, in a row that is signed for this study."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studydb.domain.records import Trainable
from studydb.domain.study_spec import StudySpec
from studydb.settings import Keyring
from studydb.trainables import Command, describe, sign

Code = Callable[..., Any] | Command | Sequence[str] | str
"""
What trials run: a function or a `studydb.Trainable` class, or the path of one ("module:name"); or a
command, as a list such as ["./train", "--lr", "{lr}"] or as a `studydb.Command`.
"""


def described(code: Code, spec: StudySpec, *, workdir: Path) -> Trainable:
    """
    Check code and describe it, without a signature.

    Args:
        spec: The study's space and objective, with which a command must agree.
        workdir: The directory that workers search after their own.

    Raises:
        InvalidSpec: A command does not agree with the space.
        TrainableError: Workers could not find or call the code.
    """
    if isinstance(code, Sequence) and not isinstance(code, str):
        code = Command(code)
    if isinstance(code, Command):
        code.check(spec.space, metric=spec.objective.metric, workdir=workdir)
        return code.describe(spec.space, workdir=workdir)
    return describe(code, workdir=workdir)


def signed(
    code: Code, spec: StudySpec, study_uuid: str, keyring: Keyring, *, workdir: Path
) -> Trainable:
    """Describe code as `described` does, and sign it for a study with the keyring's first key."""
    return sign(described(code, spec, workdir=workdir), study_uuid, keyring)
