"""The task of most benchmarks: three params, ten reports, one metric to minimise."""

STUDY = "bench"
METRIC = "loss"
REPORTS = 10

LR = (1e-4, 1.0)
WIDTH = (4, 256)
MOMENTUM = (0.0, 0.99)


def loss(momentum: float, step: int) -> float:
    """A falling curve, computed without training."""
    return momentum + 1.0 / step
