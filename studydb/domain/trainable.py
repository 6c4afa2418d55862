"""The record of a piece of the user's code that a study runs, such as its trainable."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class TrainableKind(StrEnum):
    """How a worker finds a trainable."""

    IMPORT = "import"
    """By importing the function or class whose path `module:name` is the trainable's name."""
    PICKLE = "pickle"
    """By loading the pickle in `source`."""
    BOUND = "bound"
    """
    By importing or unpickling a function or class, and loading the objects that are bound to its
    parameters; `source` describes both.
    """
    COMMAND = "command"
    """By starting the program whose command line is in `source`, as JSON."""


class TrainableRole(StrEnum):
    """
    What a study uses a piece of the user's code for.

    HOOK, SEARCHER, PREDICATE and EXPLORE are not used yet.
    """

    TRAINABLE = "trainable"
    HOOK = "hook"
    SCHEDULER = "scheduler"
    SEARCHER = "searcher"
    RULE = "rule"
    RESOURCES = "resources"
    PREDICATE = "predicate"
    EXPLORE = "explore"


class TrainableForm(StrEnum):
    """Whether a piece of the user's code is a function, a class or a command."""

    FUNCTION = "function"
    CLASS = "class"
    COMMAND = "command"


class Trainable(Struct, frozen=True):
    """
    A piece of the user's code that a study runs.

    Attributes:
        kind: A `TrainableKind`, or a text that only a newer studydb knows.
        workdir: The directory that workers search for the code, or for a command's files, after
            their own directory.
        python_version: Such as "3.11"; a pickle is loaded only by the same minor version of Python.
        signatures: The MACs by key id.
        role: A `TrainableRole`; the signatures cover it. The `source` of a stop rule or of a
            scheduler holds its options, as JSON.
    """

    uuid: str
    kind: str
    name: str
    workdir: str
    python_version: str
    source: bytes | None = None
    signatures: Mapping[str, str] = field(default_factory=dict)
    form: str = TrainableForm.FUNCTION
    role: str = TrainableRole.TRAINABLE

    @property
    def noun(self) -> str:
        """The word for this code in errors."""
        match self.role:
            case TrainableRole.RULE:
                return "stop rule"
            case TrainableRole.RESOURCES:
                return "resource function"
        return self.role
