"""Say in words which trials fit no worker, and what each worker uses."""

import textwrap
from collections.abc import Iterable

from studydb.domain.resources import NOTHING, typing_hint
from studydb.domain.text.display import visible
from studydb.operations.fit_report import FitReport, Misfit
from studydb.store.resource_classes import Load

LINE_WIDTH = 80
SHORT_ID = 8


def misfit_text(misfit: Misfit, loads: Iterable[Load]) -> str:
    """Write "Trial 3 fits no live worker: it asks for gpus=4; the nearest offer is gpus=2."."""
    which = "A new trial" if misfit.number is None else f"Trial {misfit.number}"
    hint = typing_hint(misfit.asked, [load.offers for load in loads])
    offered = "no worker is alive"
    if misfit.nearest is not None:
        offered = f"the nearest offer is {visible(str(misfit.nearest))}"
    asked = visible(str(misfit.asked))
    return f"{which} fits no live worker: it asks for {asked}; {offered}.{hint}"


def load_text(load: Load) -> str:
    """Write "gpus=1 of cpus=8, gpus=2", and for which trial the worker is reserved."""
    uses = str(load.uses)
    text = f"{'none' if uses == NOTHING else uses} of {load.offers}"
    reserved = load.reserved_for
    return visible(text if reserved is None else f"{text}; reserved for trial {reserved}")


def fit_lines(report: FitReport | None) -> list[str]:
    """Return the lines of a status page: trials that fit no worker, then what each worker uses."""
    if report is None:
        return []
    loads = report.loads
    lines = [
        line
        for misfit in report.misfits
        for line in textwrap.wrap(misfit_text(misfit, loads.values()), LINE_WIDTH)
    ]
    lines += [f"  worker {uuid[:SHORT_ID]} uses {load_text(load)}" for uuid, load in loads.items()]
    return lines
