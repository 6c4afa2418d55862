"""A trainable that reports random Python values; `report` must raise no error but InvalidReport."""

import datetime as dt
import decimal
import math
import sys
from random import Random

import numpy as np

from studydb import InvalidReport

LEAVES = [
    None,
    True,
    0,
    -(2**63),
    2**64,
    10**300,
    10**400,
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    sys.float_info.max,
    5e-324,
    "",
    "text",
    "a\0b",
    "\ud800",
    "NaN",
    "\\Infinity",
    "x" * 100_000,
    b"bytes",
    object(),
    1j,
    decimal.Decimal("0.1"),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    np.float32(0.5),
    np.float64(math.nan),
    np.int64(-3),
    np.bool_(True),
    np.array(7),
    np.zeros((2, 3)),
    np.array(["a", "b"]),
    np.array([object()]),
    {1, 2},
    range(3),
    Ellipsis,
]
DEPTHS = [1, 31, 32, 33, 600, 5_000]


def deep(rng):
    value = rng.choice(LEAVES)
    kind = rng.choice([lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)])
    for _ in range(rng.choice(DEPTHS)):
        value = kind(value)
    return value


def value(rng, depth=0):
    kind = rng.randrange(6 if depth < 4 else 3)
    if kind == 3:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 4:
        return {rng.choice(["a", "b/c", "", 7, None]): value(rng, depth + 1) for _ in range(3)}
    return deep(rng) if kind == 5 else rng.choice(LEAVES)


def train(config, trial):
    """Report 100 dicts with random values, and then a valid dict that counts the refused ones."""
    rng, refused = Random(trial.seed), 0
    for _ in range(100):
        loss = rng.choice([rng.choice(LEAVES), 0.5, 0.25, sys.float_info.max, math.nan])
        try:
            trial.report({"loss": loss, rng.choice(["m", "a/b", "é"]): value(rng)})
        except InvalidReport:
            refused += 1
    trial.report({"loss": 0.5, "refused": refused})
