"""What the trials of a new study need: check a resource function, read `default_resources`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studydb.domain.errors import InvalidSpec, TrainableError
from studydb.domain.resource_function import NOUN, Requested, ResourceFunction
from studydb.domain.resources import read_resources
from studydb.domain.space.search_space import Space
from studydb.domain.trainable import Trainable, TrainableKind, TrainableRole
from studydb.searchers import RandomSearch
from studydb.study.code import Code
from studydb.study.rule_checks import running
from studydb.trainables import WithParameters
from studydb.trainables.bound_parameters import BoundSource
from studydb.trainables.describing import describe_import, module_text
from studydb.trainables.resource_functions import ATTRIBUTE, DEFAULT, DefaultAnswer
from studydb.worker.rule_code import asking_requests

_CURE = "Correct the code, or say what trials need: resources= (--resources), {} for nothing."


def described_function(
    requested: Requested | None, space: Space, *, workdir: Path
) -> Trainable | None:
    """
    Ask a resource function once, in a process like a worker's decider, and describe its code.

    Args:
        space: The study's space; the config that the function is asked about is drawn from it.
        workdir: Workers look for the code in their own directory first, then in this one.

    Returns:
        The unsigned code; None if no function says what the trials need.

    Raises:
        TrainableError: The function cannot be imported, or its answer is not amounts of resources.
    """
    if not isinstance(requested, ResourceFunction):
        return None
    code = describe_import(requested.path, workdir=workdir, role=TrainableRole.RESOURCES)
    config: Mapping[str, Any] = space.config(RandomSearch().propose(space, seed=0, draw=0))
    with running(f"{NOUN} {requested}", code) as decider:
        asking_requests(decider)(config)
    return code


def default_resources(
    code: Code | None, trainable: Trainable | None, *, workdir: Path
) -> Requested | None:
    """
    Read the attribute `default_resources`: what the trials of a function or a class need.

    Code that is named by its path is imported in a child process. Because an import may be slow,
    the code is not imported if the text of its module shows that the code has no such attribute.

    Returns:
        None if the code has no such attribute or is a command; also if the code cannot be imported
        here, and its module does not mention the attribute.

    Raises:
        InvalidSpec: The code is given as an object, and its attribute is neither amounts of
            resources nor a function that workers can import.
        TrainableError: The code is named by its path, and its module mentions the attribute; but
            the code cannot be imported, or the attribute is neither amounts nor a function.
    """
    if code is None or trainable is None or trainable.kind == TrainableKind.COMMAND:
        return None
    if isinstance(code, str):
        return _default_of_path(trainable, workdir)
    unbound = code.code if isinstance(code, WithParameters) else code
    default = getattr(unbound, ATTRIBUTE, None)
    if not callable(default):
        return None if default is None else read_resources(ATTRIBUTE, default)
    if _kind_of(trainable) != TrainableKind.IMPORT:
        raise InvalidSpec(
            f"{ATTRIBUTE} of {trainable.name} is a function, which workers import by its path, but "
            f"{trainable.name} is sent to them by value. Move {trainable.name} to a module that "
            "Python finds from the working directory, or give amounts: resources={'gpus': 1}."
        )
    return ResourceFunction(trainable.name)


def _kind_of(trainable: Trainable) -> str:
    is_bound = trainable.kind == TrainableKind.BOUND
    return BoundSource.read(trainable).kind if is_bound else trainable.kind


def _default_of_path(trainable: Trainable, workdir: Path) -> Requested | None:
    path = trainable.name
    text = module_text(path, workdir)
    is_mentioned = text is not None and ATTRIBUTE in text
    if not is_mentioned and text is not None and _is_plain(path.partition(":")[2], text):
        return None
    code = describe_import(path, workdir=workdir, role=TrainableRole.RESOURCES)
    try:
        with running(f"{ATTRIBUTE} of {path}", code) as decider:
            answer: DefaultAnswer = decider.decide(0, DEFAULT, {}, DefaultAnswer)
    except TrainableError as error:
        if not is_mentioned:  # this host may lack a module that the workers' hosts have
            return None
        why = str(error).removesuffix("Correct it, and try again.").strip()
        raise TrainableError(f"{why} {_CURE}") from None
    if answer.is_function:
        return ResourceFunction(path)
    return None if answer.amounts is None else read_resources(ATTRIBUTE, answer.amounts)


def _is_plain(name: str, text: str) -> bool:
    """
    Whether a module's text defines this name as a function or as a class.

    A class counts only if it has no base, or `Trainable` as its only base, because any other base
    could have the attribute `default_resources`.
    """
    of_class = re.search(rf"^class\s+{re.escape(name)}\s*(?:\(([^)]*)\))?\s*:", text, re.MULTILINE)
    if of_class is not None:
        return (of_class[1] or "").strip() in ("", "Trainable", "studydb.Trainable")
    return re.search(rf"^def\s+{re.escape(name)}\b", text, re.MULTILINE) is not None
