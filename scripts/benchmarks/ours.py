"""The study of most benchmarks, and trials as studydb's users run them: ask, report, finish."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import studydb
from benchmarks.space import LR, METRIC, MOMENTUM, REPORTS, STUDY, WIDTH, loss
from benchmarks.teams import Step

BUFFERED, FLUSHED = "studydb", "studydb flushing"


def create(url: str, trainable: str | None = None, **specs: Any) -> None:
    """Create the study of a benchmark; by default it has no budget and no trainable."""
    space = {
        "lr": studydb.loguniform(*LR),
        "width": studydb.randint(*WIDTH),
        "momentum": studydb.uniform(*MOMENTUM),
    }
    study = studydb.create_study(
        STUDY, trainable, space=space, metric=METRIC, mode="min", storage=url, **specs
    )
    study.close()


def build(stack: ExitStack, *, index: int, url: str) -> Mapping[str, Step]:
    """Return the steps: a trial with buffered reports, and one with a flush after each report."""
    del index
    study = stack.enter_context(closing(studydb.load_study(STUDY, storage=url)))
    return {
        BUFFERED: partial(_run_trial, study, flush=False),
        FLUSHED: partial(_run_trial, study, flush=True),
    }


def _run_trial(study: Any, *, flush: bool) -> int:
    with study.ask() as trial:
        momentum = trial.params["momentum"]
        for step in range(1, REPORTS + 1):
            trial.report({METRIC: loss(momentum, step)})
            if flush:
                trial.flush()
    return 1
