"""
Distributions: the functions that users call, beside their names in Ray Tune and Optuna.

| studydb | Ray Tune | Optuna |
|---|---|---|
| uniform(a, b) | uniform(a, b) | suggest_float(a, b) |
| loguniform(a, b) | loguniform(a, b) | suggest_float(a, b, log=True) |
| quniform(a, b, q) | quniform(a, b, q) | suggest_float(a, b, step=q) |
| randint(a, b) | randint(a, b + 1) | suggest_int(a, b) |
| lograndint(a, b) | lograndint(a, b + 1) | suggest_int(a, b, log=True) |
| choice(values) | choice(values), grid_search(values) | suggest_categorical(values) |
"""

from collections.abc import Sequence
from typing import Any

from studydb.domain.space.domains import (
    Choice,
    Domain,
    LogRandInt,
    LogUniform,
    QUniform,
    RandInt,
    Uniform,
)


def uniform(lower: float, upper: float) -> Uniform:
    """
    A float from [lower, upper), uniformly distributed.

    `uniform` of Ray Tune, `suggest_float` of Optuna. An enqueued value may be `upper` itself.
    """
    return Uniform(lower, upper)


def loguniform(lower: float, upper: float) -> LogUniform:
    """
    A float from [lower, upper) whose logarithm is uniform: half lie below the geometric mean.

    `loguniform` of Ray Tune, `suggest_float(log=True)` of Optuna. `lower` must be positive.
    """
    return LogUniform(lower, upper)


def quniform(lower: float, upper: float, q: float) -> QUniform:
    """
    A multiple of q from [lower, upper], both ends included if they are multiples.

    Every multiple is equally likely; Ray Tune rounds uniform draws, so ends come half as often.
    Multiples count from 0; those of Optuna's `suggest_float(step=)` count from `lower`.
    """
    return QUniform(lower, upper, q)


def randint(lower: int, upper: int) -> RandInt:
    """
    An integer from [lower, upper], BOTH ENDS INCLUDED, each equally likely.

    `suggest_int` of Optuna. Ray Tune's and numpy's `randint` exclude the upper end.
    """
    return RandInt(lower, upper)


def lograndint(lower: int, upper: int) -> LogRandInt:
    """
    An integer from [lower, upper], BOTH ENDS INCLUDED; k has a weight of log((k + 1) / k).

    `lograndint(lower, upper + 1)` of Ray Tune, like `suggest_int(log=True)` of Optuna. `lower`
    must be at least 1.
    """
    return LogRandInt(lower, upper)


def choice(values: Sequence[Any]) -> Choice:
    """
    One of a list of values, each equally likely; a value given twice is twice as likely.

    `choice` of Ray Tune, `suggest_categorical` of Optuna. Values are anything that JSON holds:
    numbers, texts, booleans, None, lists and dicts. Tuples become lists.
    """
    return Choice(values)


DISTRIBUTIONS: dict[str, type[Domain]] = {
    cls.kind: cls for cls in (Uniform, LogUniform, QUniform, RandInt, LogRandInt, Choice)
}
"""The classes by the names that stand in calls and in JSON."""
