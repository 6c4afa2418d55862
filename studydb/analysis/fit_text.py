"""Say in words which trials fit no worker, why no new trial is made, and what each worker uses."""

import textwrap
from collections.abc import Iterable

from studydb.domain.resources import NOTHING, Capacity, misspelling_hint
from studydb.domain.text.display import SHORT_ID, visible
from studydb.operations.fit_report import FitReport, FullQueue, Misfit, TrialFit
from studydb.store.resource_classes import Load

LINE_WIDTH = 80


def misfit_text(misfit: Misfit, offers: Iterable[Capacity]) -> str:
    """Write "Trial 3 fits no live worker: it asks for gpus=4; the nearest offer is gpus=2."."""
    which = "A new trial" if misfit.number is None else f"Trial {misfit.number}"
    hint = misspelling_hint(misfit.asked, offers)
    offered = "no worker is alive"
    if misfit.nearest is not None:
        offered = f"the nearest offer is {visible(str(misfit.nearest))}"
    asked = visible(str(misfit.asked))
    return f"{which} fits no live worker: it asks for {asked}; {offered}.{hint}"


def full_text(full: FullQueue) -> str:
    """Write "No new trial is made: 1,000 trials that ask for gpus=4 wait, …", and what helps."""
    fact = (
        f"No new trial is made: {full.n_waiting:,} trials that ask for {visible(str(full.asked))} "
    )
    if full.fits_a_worker:
        cause = "wait for the workers that they fit. Start more such workers"
    else:
        cause = "wait, and fit no live worker. Start a worker that they fit"
    others = (
        "stop some of the waiting trials, or change what they ask for: "
        "studydb set NAME resources=… --trial N."
    )
    return f"{fact}{cause}, {others}"


def load_text(load: Load) -> str:
    """Write "gpus=1 of cpus=8, gpus=2", and the trial for which the worker is reserved."""
    uses = str(load.uses)
    text = f"{'none' if uses == NOTHING else uses} of {load.offers}"
    reserved = load.reserved_for
    return visible(text if reserved is None else f"{text}; reserved for trial {reserved}")


def trial_fit_texts(fit: TrialFit | None) -> list[str]:
    """Say that a PENDING trial fits no live worker; return [] if there is nothing to say."""
    if fit is None or fit.misfit is None:
        return []
    return [misfit_text(fit.misfit, fit.offers)]


def fit_texts(report: FitReport | None) -> list[str]:
    """Make the status page's texts on resources by `misfit_text`, `full_text` and `load_text`."""
    if report is None:
        return []
    loads = report.loads
    offers = [load.offers for load in loads.values()]
    texts = [misfit_text(misfit, offers) for misfit in report.misfits]
    if report.full is not None:
        texts.append(full_text(report.full))
    texts += [f"worker {uuid[:SHORT_ID]} uses {load_text(load)}" for uuid, load in loads.items()]
    return texts


def fit_lines(texts: Iterable[str]) -> list[str]:
    """Wrap the texts of a page to 80 columns."""
    wrapped = (textwrap.wrap(text, LINE_WIDTH, subsequent_indent="  ") for text in texts)
    return [line for lines in wrapped for line in lines]
