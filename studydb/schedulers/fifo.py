"""FIFO: every trial runs to its end; no trial is stopped by a comparison with others."""

from dataclasses import dataclass

from studydb.domain.specs.spec import suggesting_options
from studydb.schedulers.base import BaseScheduler


@suggesting_options
@dataclass(frozen=True)
class FIFO(BaseScheduler):
    """Stop no trial: a trial ends by other causes, such as a stop rule or its function's return."""
