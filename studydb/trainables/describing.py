"""Describe a function or class for workers: by import path if they can import it, else by value."""

import functools
import inspect
import json
import os
import re
import site
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
from msgspec import structs

from studydb.domain.errors import TrainableError
from studydb.domain.text.suggestions import did_you_mean
from studydb.domain.trainable import Trainable, TrainableForm, TrainableKind, TrainableRole
from studydb.settings import scrubbed_environment
from studydb.trainables import modules
from studydb.trainables.bound_parameters import BoundSource, StoredParameter, WithParameters
from studydb.trainables.calling import check_signature, qualified_name
from studydb.trainables.entry_points import path_of

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

MAX_SOURCE_BYTES = 16 << 20
"""The largest `source` of a trainable; a worker reads the whole source when it starts."""

IMPORT_PATH = re.compile(
    r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)"
)

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
"""
Names of the folders of installed libraries, in this environment and in any other environment that
`PYTHONPATH` or a .pth file adds.
"""

_INTERPRETER_TIMEOUT_S = 60.0


def describe(function: Callable[..., Any] | str, *, workdir: str | Path) -> Trainable:
    """
    Describe a function or a class so that workers can find it.

    A function object gets an import path on two conditions. First, the function's module has this
    object under the function's name. Second, a fresh interpreter in `workdir` finds this module and
    all of the user's modules to which the module refers directly or indirectly. The interpreter
    only looks for these modules, without importing them. With an import path, each trial runs the
    files as they are when the trial starts. Any other function object is pickled.

    Args:
        function: The function, its path "module:function", or the name of an entry point.
        workdir: The working directory that the study's row will hold.

    Returns:
        The trainable without a signature (see `sign`).

    Raises:
        TrainableError: The function cannot be found, pickled, or called with a config; its pickle
            is larger than `MAX_SOURCE_BYTES`; or the fresh interpreter gave no answer.
    """
    workdir = Path(workdir).absolute()
    if isinstance(function, str):
        path = function if ":" in function else path_of(function)
        return describe_import(path, workdir=workdir)
    check_signature(function)
    return _describe(function, workdir)[0]


def describe_import(
    path: str,
    options: Mapping[str, Any] | None = None,
    *,
    workdir: Path,
    role: TrainableRole = TrainableRole.TRAINABLE,
) -> Trainable:
    """
    Describe code by its import path, without a signature; a fresh interpreter must find its module.

    Args:
        options: The options of a stop rule's or scheduler's class; None for other code.

    Raises:
        TrainableError: See `check_path`.
    """
    check_path(path, workdir)
    if options is None:
        return _trainable(TrainableKind.IMPORT, path, workdir, role=role)
    source = json.dumps(dict(options)).encode()
    form = TrainableForm.CLASS
    return _trainable(TrainableKind.IMPORT, path, workdir, source, form=form, role=role)


def describe_with_parameters(
    given: WithParameters,
    *,
    workdir: str | Path,
    store: Callable[[str, bytes], StoredParameter] | None = None,
) -> Trainable:
    """
    Describe a function or class to which objects are bound; pickle and store one object at a time.

    Args:
        store: Stores one object; called with the name of its parameter and its pickle. None to
            describe the code alone.

    Raises:
        TrainableError: See `describe`; or an object cannot be pickled, or the description is larger
            than `MAX_SOURCE_BYTES`.
    """
    workdir = Path(workdir).absolute()
    found, missing = _describe(given.code, workdir)
    parameters: dict[str, StoredParameter] = {}
    size_bytes = len(found.source or b"")
    if store is not None:
        for name, value in sorted(given.values.items()):
            with _by_value(missing):
                data = _pickled_parameter(name, value)
            parameters[name] = store(name, data)
            size_bytes += len(parameters[name].data or b"")
            _check_size(given.code, size_bytes)
    source = BoundSource(found.kind, found.source, parameters).encode()
    _check_size(given.code, len(source))
    return structs.replace(found, kind=TrainableKind.BOUND, source=source)


def _check_size(code: Callable[..., Any], size_bytes: int) -> None:
    if size_bytes > MAX_SOURCE_BYTES:
        raise TrainableError(
            f"{_name(code)} and its parameters have at least {size_bytes / 2**20:.1f} MiB, and "
            f"the database takes at most {MAX_SOURCE_BYTES >> 20} MiB. Store the parameters in a "
            "directory that all workers see: checkpoints=DIRECTORY, or --checkpoints."
        )


def _describe(
    function: Callable[..., Any], workdir: Path
) -> tuple[Trainable, Collection[ModuleType]]:
    """Describe a function; return also the modules that must be pickled by value."""
    form = TrainableForm.CLASS if inspect.isclass(function) else TrainableForm.FUNCTION
    own = {module.__name__: module for module in _own_modules(function)}
    places = _fresh_places(own, workdir)
    not_found = {name for name, module in own.items() if not _same(module, places[name])}
    missing = _not_importable(own, not_found)
    path = _import_path(function)
    if path is not None and path.partition(":")[0] in own.keys() - missing.keys():
        return _trainable(TrainableKind.IMPORT, path, workdir, form=form), missing.values()
    source = _pickle(function, missing.values(), workdir)
    name = path or qualified_name(function)
    return _trainable(TrainableKind.PICKLE, name, workdir, source, form=form), missing.values()


def _pickled_parameter(name: str, value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as cause:
        raise TrainableError(
            f"The parameter {name!r} cannot be sent to workers: {cause}. "
            "Make or open this object inside the function."
        ) from cause
    return data


def _trainable(
    kind: TrainableKind,
    name: str,
    workdir: Path,
    source: bytes | None = None,
    *,
    form: TrainableForm = TrainableForm.FUNCTION,
    role: TrainableRole = TrainableRole.TRAINABLE,
) -> Trainable:
    return Trainable(
        uuid=str(uuid.uuid4()),
        kind=kind,
        name=name,
        workdir=str(workdir),
        python_version=PYTHON_VERSION,
        source=source,
        form=form,
        role=role,
    )


def _import_path(function: Callable[..., Any]) -> str | None:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else None


def _own_modules(function: Callable[..., Any]) -> Iterator[ModuleType]:
    """
    Yield the loaded modules that are not part of Python, of an installed library or of studydb.

    Yield the function's own module even if it is part of these. Never yield `__main__`, or a module
    without a file. A pickled function may refer to any of the yielded modules. A module that a
    worker cannot import is pickled with the function.
    """
    home = getattr(function, "__module__", None)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name.startswith("__") or getattr(module, "__name__", None) != name:
            continue
        if name == home or not (name.partition(".")[0] == "studydb" or _is_installed(file)):
            yield module


@functools.cache
def _is_installed(file: str) -> bool:
    """Whether a loaded module's file belongs to Python or to an installed library."""
    libraries = _library_folders()
    return any(
        str(parent) in libraries or parent.name in _LIBRARY_FOLDERS
        for parent in Path(os.path.realpath(file)).parents
    )


@functools.cache
def _library_folders() -> frozenset[str]:
    return frozenset(
        os.path.realpath(path)
        for path in (
            *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            site.getusersitepackages(),
        )
    )


def _not_importable(own: Mapping[str, ModuleType], not_found: set[str]) -> dict[str, ModuleType]:
    """
    Find the modules that a worker cannot import: `not_found`, and all modules that refer to them.

    For example, a test module imports a helper from a folder that conftest.py puts on `sys.path`. A
    worker finds the test module, but cannot import it, because it does not find the helper.
    """
    missing = set(not_found)
    references = {name: {*_referred_modules(module)} for name, module in own.items()}
    while more := {name for name, referred in references.items() if referred & missing} - missing:
        missing |= more
    return {name: module for name, module in own.items() if name in missing}


def _referred_modules(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else None
        home = name or inspect.getattr_static(value, "__module__", None)
        if isinstance(home, str):
            yield home


def _same(module: ModuleType, place: list[str] | None) -> bool:
    return place is not None and [os.path.realpath(str(module.__file__))] == place


def _fresh_places(names: Iterable[str], workdir: Path) -> dict[str, list[str] | None]:
    """Ask a fresh interpreter in `workdir` where it finds modules (see `modules.place_of`)."""
    try:
        answer = subprocess.run(
            [sys.executable, "-P", str(modules.__file__)],
            input=json.dumps(list(names)),
            capture_output=True,
            check=True,
            cwd=workdir,
            env=scrubbed_environment(),
            text=True,
            timeout=_INTERPRETER_TIMEOUT_S,
        )
        places: dict[str, list[str] | None] = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as cause:
        raise TrainableError(
            f"A fresh interpreter ({sys.executable}) in {workdir} gave no answer: {cause}. "
            "Check that Python starts there."
        ) from cause
    return places


def module_text(path: str, workdir: Path) -> str | None:
    """Read the text of an import path's module; None if no Python file of the module is found."""
    module = path.partition(":")[0]
    place = _fresh_places([module], workdir)[module]
    if not place or not place[0].endswith(".py"):
        return None
    return Path(place[0]).read_text(encoding="utf-8", errors="replace")


def check_path(path: str, workdir: Path) -> None:
    """
    Check that a fresh interpreter in `workdir` finds the module of an import path.

    The module's text must hold the name; see `_check_mentioned`. None of the user's code is run.

    Raises:
        TrainableError: The path is no import path, the module is not found, or its text does not
            hold the name.
    """
    match = IMPORT_PATH.fullmatch(path)
    if match is None:
        raise TrainableError(
            f"The trainable {path!r} is not an import path; write 'module:function', "
            "for example 'train:main'."
        )
    module = match["module"]
    place = _fresh_places([module], workdir)[module]
    if place is None:
        near = did_you_mean(module, [file.stem for file in workdir.glob("*.py")])
        if module.endswith(".py"):
            near = f" Did you mean {module.removesuffix('.py')}:{match['attribute']}, without .py?"
        raise TrainableError(
            f"Python finds no module {module!r} from {workdir}. "
            f"Create the study in the module's directory, or install its package.{near}"
        )
    _check_mentioned(match["attribute"].partition(".")[0], place)


def _check_mentioned(name: str, place: list[str]) -> None:
    """
    Refuse a name that is not in a module's text; the module is not run.

    Text with `import *` or `__getattr__` is accepted, and so is a module that is no .py file.
    """
    if not place or not place[0].endswith(".py"):
        return
    text = Path(place[0]).read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{re.escape(name)}\b|\bimport\s*\*|\b__getattr__\b", text):
        near = did_you_mean(name, re.findall(r"^(?:def|class)\s+(\w+)", text, re.MULTILINE))
        raise TrainableError(f"{place[0]} has no {name!r}; name a function that it defines.{near}")


def _pickle(function: Callable[..., Any], missing: Iterable[ModuleType], workdir: Path) -> bytes:
    try:
        with _by_value(missing):
            source: bytes = cloudpickle.dumps(function)
    except Exception as cause:
        raise TrainableError(
            f"{_name(function)} cannot be sent to workers by value: {cause}. "
            f"Put it into a module that Python finds from {workdir}."
        ) from cause
    if len(source) > MAX_SOURCE_BYTES:
        raise TrainableError(
            f"{_name(function)} contains {len(source) >> 20} MiB of data, more than "
            f"{MAX_SOURCE_BYTES >> 20} MiB. Load the data inside the function."
        )
    return source


@contextmanager
def _by_value(missing: Iterable[ModuleType]) -> Iterator[None]:
    added = [m for m in missing if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    try:
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _name(function: Callable[..., Any]) -> str:
    kind = "The function" if inspect.isfunction(function) else "The object"
    return f"{kind} {qualified_name(function)!r}"
