"""Objects that are bound to a function or class: `studydb.with_parameters(train, data=array)`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import DecodeError, Struct, msgpack

from studydb.domain.errors import TrainableError
from studydb.domain.trainable import Trainable
from studydb.trainables.calling import EXTRAS, check_signature, qualified_name
from studydb.trainables.classes import check_methods


class WithParameters(Struct, frozen=True):
    """A function or class, and the objects that each trial passes to it as keyword arguments."""

    code: Callable[..., Any]
    values: Mapping[str, Any]


class StoredParameter(Struct, frozen=True):
    """
    Where the pickle of one bound object is stored.

    Attributes:
        url: The URL of the bytes in the study's store; "inline:" if they are in `data`.
        digest: The SHA-256 of the bytes in hexadecimal.
    """

    url: str
    digest: str
    size_bytes: int
    data: bytes | None = None


class BoundSource(Struct, frozen=True):
    """
    The `source` of a trainable with parameters; the trainable's signature covers it.

    Attributes:
        kind: How a worker finds the function or class itself.
        source: The pickle of the function or class; None if it is imported.
    """

    kind: str
    source: bytes | None
    parameters: dict[str, StoredParameter]

    def encode(self) -> bytes:
        return msgpack.encode(self)

    @classmethod
    def read(cls, trainable: Trainable) -> "BoundSource":
        """Decode a trainable's source, or raise TrainableError."""
        try:
            return msgpack.decode(trainable.source or b"", type=cls)
        except DecodeError as cause:
            raise TrainableError(
                f"The parameters of the trainable {trainable.name!r} cannot be read: {cause}. "
                "They may come from a newer studydb; upgrade studydb on this worker."
            ) from cause


def with_parameters(code: Callable[..., Any], /, **values: Any) -> WithParameters:
    """
    Bind objects, such as a dataset, to a function or a class, for `create_study` or `study.set`.

    In each trial, studydb passes the objects as keyword arguments to the function, or to the
    class's `setup(config, data=…)`. Each object is pickled once, and kept in the study's checkpoint
    store, which may be the database. With warm starts, a worker loads the objects once, and its
    trials share the objects' memory; what a trial writes to an object stays in that trial's
    process. With fresh starts, each trial loads the objects. A process that runs several trials (a
    class with `reset_config`) keeps what earlier trials have written to the objects.

    Raises:
        TrainableError: The function has no parameter of a given name, or studydb itself passes an
            argument of this name; or see `check_signature`.
    """
    if not callable(code):
        raise TrainableError(
            f"with_parameters was given {code!r}; give a function or a class, not its name."
        )
    _check_names(code, values)
    check_signature(bind(code, values))
    return WithParameters(code, values)


def bind(code: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """Make a function or class to which objects are bound as keyword arguments."""
    if inspect.isclass(code):
        names = {name: getattr(code, name) for name in ("__module__", "__qualname__", "__doc__")}
        setup = functools.partialmethod(code.setup, **values)  # type: ignore[attr-defined]
        return type(code.__name__, (code,), {"setup": setup, **names})
    bound = functools.partial(code, **values)
    known = vars(code) if inspect.isfunction(code) else {}
    # With `__wrapped__`, `inspect.signature` would ignore that arguments are bound.
    attributes = {name: value for name, value in known.items() if name != "__wrapped__"}
    vars(bound).update(attributes, __qualname__=qualified_name(code))
    return bound


def _check_names(code: Callable[..., Any], values: Mapping[str, Any]) -> None:
    name, called = qualified_name(code), code
    if inspect.isclass(code):
        check_methods(code)
        name, called = f"{name}.setup", functools.partial(code.setup, None)  # type: ignore[attr-defined]
    try:
        parameters = inspect.signature(called).parameters
    except ValueError:  # some functions written in C have no signature
        return
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for given in values:
        found = parameters.get(given)
        if given in (*EXTRAS, "config", next(iter(parameters), None)):
            raise TrainableError(
                f"studydb itself gives {given!r} to {name}; choose another name for your object."
            )
        if found is None and takes_any:
            continue
        if found is None or found.kind not in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY):
            raise TrainableError(
                f"{name} takes no keyword argument {given!r}; add it to the parameters of {name}."
            )
