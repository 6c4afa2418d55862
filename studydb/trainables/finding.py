"""Load the code that a child runs: a trainable, a stop rule, a scheduler, a resource function."""

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import structs

from studydb.domain.errors import CheckpointError, TrainableError
from studydb.domain.text.display import with_article
from studydb.domain.text.suggestions import did_you_mean
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.trainables.bound_parameters import BoundSource, StoredParameter, bind
from studydb.trainables.command import StoredCommand
from studydb.trainables.command_run import CommandTrainable
from studydb.trainables.describing import IMPORT_PATH, PYTHON_VERSION
from studydb.trainables.modules import place_of

Fetch = Callable[[StoredParameter], bytes]
"""Reads the pickle of an object that is bound to a trainable."""

_in_import: list[str] = []


def code_in_import() -> str | None:
    """
    Name the code that this process imports at the moment for a study; None if it imports none.

    A pickle imports the modules to which it refers.
    """
    return _in_import[-1] if _in_import else None


@contextmanager
def _importing(code: str) -> Iterator[None]:
    _in_import.append(code)
    try:
        yield
    finally:
        _in_import.pop()


def load(
    trainable: Trainable,
    workdirs: Sequence[str | Path],
    *,
    fetch: Fetch | None = None,
    own_only: bool = False,
) -> Callable[..., Any]:
    """
    Find a trainable's function: import its module, unpickle its bytes, or wrap its command.

    If objects are bound to the trainable, they are unpickled and bound to the function.

    For an import path, the first directory with which Python finds the module stays first on
    `sys.path`; for a pickle, all directories stay there. Errors that the module's code raises while
    it is imported by its path are not wrapped.

    Args:
        trainable: A trainable that `check_trusted` has accepted.
        workdirs: The directories to search, in order: the worker's working directory and, if the
            trainable is signed, the study's working directory.
        fetch: Reads the pickle of a bound object; None if the trainable's row holds every pickle.
            Raises CheckpointError if the pickle is missing or damaged, OSError if this host cannot
            reach the store.
        own_only: Whether to refuse a function that the named module imports from another package,
            such as `train:system` after `from os import system`; True for an unsigned trainable.

    Raises:
        TrainableError: The function is missing, not callable, refused by `own_only`, damaged, or
            pickled by another Python version; its module, or a module that its pickle needs, is
            missing; an object that is bound to the function is missing or damaged; the trainable's
            command cannot be run; or the trainable comes from a newer studydb.
    """
    directories = [str(Path(directory)) for directory in dict.fromkeys(workdirs)]
    function: Callable[..., Any]
    if trainable.kind == TrainableKind.IMPORT:
        function = _by_path(trainable.name, directories, own_only=own_only)
    elif trainable.kind == TrainableKind.PICKLE:
        function = _by_value(trainable, directories)
    elif trainable.kind == TrainableKind.BOUND:
        function = _with_parameters(trainable, directories, fetch)
    elif trainable.kind == TrainableKind.COMMAND:
        function = CommandTrainable(StoredCommand.read(trainable, directories))
    else:
        raise TrainableError(
            f"The trainable {trainable.name!r} is of the kind {trainable.kind!r}, which this "
            "version of studydb does not know. Upgrade studydb on this worker."
        )
    if not callable(function):
        kind = with_article(type(function).__name__)
        raise TrainableError(
            f"The {trainable.noun} {trainable.name!r} is {kind}; name a function or class."
        )
    return function


def _by_path(name: str, directories: list[str], *, own_only: bool) -> Any:
    match = IMPORT_PATH.fullmatch(name)
    if match is None:
        raise TrainableError(f"The trainable {name!r} is not an import path ('module:function').")
    module = _import(match["module"], directories)
    found: Any = module
    for part in match["attribute"].split("."):
        if not hasattr(found, part):
            raise TrainableError(
                f"{module.__file__} has no {match['attribute']!r}."
                f"{did_you_mean(match['attribute'], _functions(module))} "
                "Correct the file, or look for another file of this name that hides yours."
            )
        found = getattr(found, part)
    if own_only and not _is_own(found, module):
        raise TrainableError(
            f"{name!r} is not defined in {match['module']}, and the study is not signed. "
            "Sign the study, or allow the module that defines it."
        )
    return found


def _import(name: str, directories: list[str]) -> ModuleType:
    for directory in directories:
        sys.path.insert(0, directory)
        importlib.invalidate_caches()
        if place_of(name) is not None:
            with _importing(f"The module {name!r}"):
                return importlib.import_module(name)
        sys.path.remove(directory)
    raise TrainableError(
        f"There is no module {name!r}, neither in {' nor in '.join(directories)}, nor installed "
        f"for {sys.executable}. Start the worker with --workdir naming the module's directory."
    )


def _functions(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value)]


def _is_own(function: Any, module: ModuleType) -> bool:
    home = getattr(function, "__module__", None) or ""
    return home.partition(".")[0] == module.__name__.partition(".")[0]


def check_python(trainable: Trainable) -> None:
    """Raise `TrainableError` for code or objects that another version of Python has pickled."""
    is_pickle = trainable.kind in (TrainableKind.PICKLE, TrainableKind.BOUND)
    if is_pickle and trainable.python_version != PYTHON_VERSION:
        raise TrainableError(
            f"The trainable {trainable.name!r} was sent by value from Python "
            f"{trainable.python_version}, and this worker runs Python {PYTHON_VERSION}. Use the "
            "same version, or create the study with a function in an importable module."
        )


def _by_value(trainable: Trainable, directories: list[str]) -> Any:
    check_python(trainable)
    sys.path[:0] = directories
    return _unpickled(trainable.source or b"", f"The trainable {trainable.name!r}", directories)


def _with_parameters(
    trainable: Trainable, directories: list[str], fetch: Fetch | None
) -> Callable[..., Any]:
    check_python(trainable)
    found = BoundSource.read(trainable)
    plain = structs.replace(trainable, kind=found.kind, source=found.source)
    function = load(plain, directories, fetch=fetch)
    values = {}
    for name, parameter in found.parameters.items():
        what = f"The parameter {name!r} of the trainable {trainable.name!r}"
        try:
            data = parameter.data if fetch is None else fetch(parameter)
        except (CheckpointError, OSError) as cause:
            raise TrainableError(
                f"{what} cannot be loaded: {str(cause).rstrip('.')}. Store it again: create "
                "the study once more with load_if_exists=True, or give the trainable to study.set."
            ) from cause
        values[name] = _unpickled(data or b"", what, directories)
        del data  # only one fetched pickle at a time is in memory
    return bind(function, values)


def _unpickled(data: bytes, what: str, directories: list[str]) -> Any:
    try:
        with _importing(what):
            return pickle.loads(data)  # noqa: S301  signed, see trust.py
    except ModuleNotFoundError as cause:
        raise TrainableError(
            f"{what} needs the module {cause.name!r}, which is neither in "
            f"{' nor in '.join(directories)}, nor installed for {sys.executable}. Install it, or "
            "start the worker with --workdir naming the module's directory."
        ) from cause
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError) as cause:
        raise TrainableError(
            f"{what} cannot be opened: {str(cause).rstrip('.')}. The libraries here may differ "
            "from those where the study was created. Install the same versions, or give the "
            "trainable to study.set."
        ) from cause
