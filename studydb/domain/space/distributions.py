"""Distributions: functions that users call. README.md compares them with those of other tools."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from studydb.domain.errors import InvalidSpec
from studydb.domain.space.domains import (
    Choice,
    Domain,
    LogRandInt,
    LogUniform,
    QUniform,
    RandInt,
    Uniform,
)
from studydb.domain.text.display import shortened

P = ParamSpec("P")


def uniform(lower: float, upper: float) -> Uniform:
    """
    Sample a float uniformly from [lower, upper).

    In Ray Tune this is `uniform`, in Optuna `suggest_float`. Enqueued params may contain `upper`.
    """
    return Uniform(lower, upper)


def loguniform(lower: float, upper: float) -> LogUniform:
    """
    Sample a float from [lower, upper), uniformly on a logarithmic scale.

    Half of the samples are below the geometric mean of the bounds. `lower` must be positive. In Ray
    Tune this is `loguniform`, in Optuna `suggest_float(log=True)`.
    """
    return LogUniform(lower, upper)


def quniform(lower: float, upper: float, q: float) -> QUniform:
    """
    Sample a multiple of q from [lower, upper]; both ends are included if they are multiples.

    All multiples are equally likely. Ray Tune rounds uniform numbers, which makes both ends half as
    likely. The multiples are k * q; Optuna's `suggest_float(step=q)` samples lower + k * q.
    """
    return QUniform(lower, upper, q)


def randint(lower: int, upper: int) -> RandInt:
    """
    Sample an integer uniformly from [lower, upper], BOTH ENDS INCLUDED.

    In Optuna this is `suggest_int`. Ray Tune's and numpy's `randint` exclude the upper end.
    """
    return RandInt(lower, upper)


def lograndint(lower: int, upper: int) -> LogRandInt:
    """
    Sample an integer k from [lower, upper], BOTH ENDS INCLUDED.

    The probability of k is proportional to log((k + 1) / k).

    `lower` must be at least 1. In Ray Tune this is `lograndint(lower, upper + 1)`; Optuna's
    `suggest_int(log=True)` is similar.
    """
    return LogRandInt(lower, upper)


def _of_one_list(make: Callable[P, Choice]) -> Callable[P, Choice]:
    """Refuse several values that are given without a list, as in choice(1, 2)."""

    @wraps(make)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Choice:
        if len(args) > 1:
            given = ", ".join(map(repr, args))
            raise InvalidSpec(
                f"choice takes one list of values, but got {len(args)} arguments; write "
                f"choice([{shortened(given, 200)}])."
            )
        return make(*args, **kwargs)

    return checked


@_of_one_list
def choice(values: Sequence[Any]) -> Choice:
    """
    Sample one of a list of values, each equally likely; a value given twice is twice as likely.

    Values may be anything that JSON holds: numbers, texts, booleans, None, lists and dicts. Tuples
    become lists. In Ray Tune this is `choice`, in Optuna `suggest_categorical`.
    """
    return Choice(values)


DISTRIBUTIONS: dict[str, type[Domain]] = {
    cls.kind: cls for cls in (Uniform, LogUniform, QUniform, RandInt, LogRandInt, Choice)
}
"""The class of each distribution, by the name of the function above."""
