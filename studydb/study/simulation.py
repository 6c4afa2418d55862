"""
Simulations: run a scheduler and a searcher on recorded curves, through the real transactions.

Simulated workers claim, ask, report, pause and finish by the operations of real workers, on SQLite
in a temporary file. Only the training and the clock are simulated. An event queue, ordered by
simulated time, tells which worker ends its step next; `Database.clock` returns the simulated time.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from studydb.analysis.nearest_curve import NearestCurve
from studydb.analysis.recorded_curves import RecordedCurves, read_curves
from studydb.analysis.simulated import STUDY, Simulation
from studydb.db import Database
from studydb.db.scratch import scratch_database
from studydb.domain import arguments
from studydb.domain.canonical import is_number
from studydb.domain.custom_scheduler import CustomScheduler
from studydb.domain.errors import InvalidSpec
from studydb.domain.records import Claim, NewStudy
from studydb.domain.records import Study as Record
from studydb.domain.scheduling import Scheduler
from studydb.domain.searching import Searcher
from studydb.domain.space.search_space import Space
from studydb.domain.study_spec import read_settings
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations.create import create
from studydb.schedulers import BY_NAME as SCHEDULERS
from studydb.schedulers import FIFO
from studydb.searchers import BY_NAME as SEARCHERS
from studydb.searchers import RandomSearch
from studydb.study import checking
from studydb.study.handle import Study
from studydb.study.rule_checks import asked_scheduler
from studydb.study.simulated_run import Settings, SimulatedRun, StepS
from studydb.study.storage import whoami


class SimulationOptions(TypedDict, total=False):
    """
    The options of `simulate`.

    Attributes:
        num_trials: The simulated study's `num_trials`; by default, and at most, the number of
            curves.
        max_steps: How many steps (epochs) all trials together may train; also the `max_steps` of
            the simulated study.
        time_limit_s: A step that ends after this simulated second does not count; also the
            `time_limit_s` of the simulated study.
        step_s: The seconds of a step, or a function that computes them from the params and the
            step; by default the curve's `step_s`, or 1 s if the curve has none.
        start_s: The seconds from a claim until the first step begins, for each attempt; 0 unless
            given.
        saves: Whether trials save a checkpoint when they pause; True unless given. Without a
            checkpoint, a resumed trial begins at its first step again.
        kills: The probability that a worker is killed during a step; 0 unless given. A new worker
            replaces the killed worker at once. The trial is recovered after its lease of 90 s and
            a renewal period of 20 s. With kills and `saves`, trials save after each step.
        space: The space in which the searcher searches; by default the space of the curves.
        metric, mode: The objective, if the curves name none; the mode is "min" unless given.
    """

    num_trials: int | None
    max_steps: int | None
    time_limit_s: float | None
    step_s: StepS | None
    start_s: float
    saves: bool
    kills: float
    space: Mapping[str, Any] | Space | None
    metric: str | None
    mode: str | None


@suggesting_keywords
def simulate(
    scheduler: Scheduler | CustomScheduler | str | None,
    searcher: Searcher | None,
    curves: Any,
    workers: int = 4,
    seed: int = 0,
    **options: Unpack[SimulationOptions],
) -> Simulation:
    """
    Simulate how well a scheduler and a searcher would have done on recorded curves.

    The same arguments give the same simulation. Without a searcher, the n-th trial gets the same
    curve in all simulations with the same seed, so that schedulers can be compared in pairs.

    Args:
        scheduler: A scheduler, or a custom scheduler: an object of a subclass of `CustomScheduler`,
            or its path such as "my_rules:Heats(max_t=9)". None for `FIFO`. As in a worker, a child
            process runs the code of a custom scheduler.
        searcher: With None, trials take the curves in a random order. With a searcher, a trial gets
            the curve whose params are nearest to the proposed params, among the curves that no
            other trial has.
        curves: A study, of which only the trials that were trained to their end are used; or what
            `read_curves` takes: a `RecordedCurves`, the path of a JSON file, a list, or a dict.
        workers: How many simulated workers train at the same time.
        seed: Determines the order of the curves, the study's seed, and the kills.
        options: Limits, times and kills; see `SimulationOptions`.

    Raises:
        InvalidSpec: An argument is wrong.
        NotAllowed: `curves` is a study without a trial that was trained to its end.
        StudyFailed: The custom scheduler gave no answer, so the simulated study has paused itself.
        TrainableError: The custom scheduler cannot be imported or made.
    """
    made = checking.scheduler(scheduler)
    checked_seed = arguments.count("seed", seed, least=0)
    recorded = _recorded(curves, options.get("metric"), options.get("mode"))
    chosen = None if searcher is None else checking.searcher(searcher)
    space = _space(options.get("space"), recorded, chosen)
    step_s = options.get("step_s")
    settings = Settings(
        choose=_in_random_order(recorded, checked_seed)
        if chosen is None
        else _nearest(space, recorded),
        n_workers=arguments.count("workers", workers, least=1),
        seed=checked_seed,
        step_s=step_s if step_s is None or callable(step_s) else checking.seconds("step_s", step_s),
        start_s=checking.seconds("start_s", options.get("start_s", 0.0)),
        saves=arguments.flag("saves", options.get("saves", True)),
        kills=_probability("kills", options.get("kills", 0.0)),
    )
    new = NewStudy(
        uuid=str(uuid4()),
        name=STUDY,
        objective=recorded.objective,
        seed=settings.seed,
        space=space,
        scheduler=made,
        searcher=chosen or RandomSearch(),
        trainable=None,
        created_by=whoami(),
        **read_settings(
            num_trials=_num_trials(options.get("num_trials"), recorded),
            max_steps=options.get("max_steps"),
            time_limit_s=options.get("time_limit_s"),
        ),
    )
    with asked_scheduler(made, workdir=Path.cwd()) as asked, scratch_database() as database:
        study = _created(database, replace(new, scheduler=asked))
        return SimulatedRun(database, study, recorded, settings).outcome()


def _recorded(curves: Any, metric: str | None, mode: str | None) -> RecordedCurves:
    if isinstance(curves, Study):
        return RecordedCurves.of_study(curves.database, curves.record)
    return read_curves(curves, metric=metric, mode=mode)


def _num_trials(asked: int | None, recorded: RecordedCurves) -> int:
    n_curves = len(recorded.curves)
    if asked is None:
        return n_curves
    if arguments.count("num_trials", asked, least=1) > n_curves:
        raise InvalidSpec(
            f"num_trials is {asked}, but there are {n_curves} curves; each trial needs one."
        )
    return asked


def _space(
    given: Mapping[str, Any] | Space | None, recorded: RecordedCurves, searcher: Searcher | None
) -> Space:
    """Return the space of the simulated study; without a searcher, trials have no params."""
    if searcher is None:
        return Space.read({})
    space = recorded.space if given is None else Space.read(given)
    if space is None or not space.parameters:
        raise InvalidSpec(
            "A searcher needs a space with parameters; give `space`, or the curves of a study."
        )
    searcher.check(space, [recorded.objective])
    return space


def _probability(name: str, value: Any) -> float:
    if not is_number(value) or not 0 <= value < 1:
        raise InvalidSpec(f"{name} is {value!r}; it must be a probability, from 0 to less than 1.")
    return float(value)


def _created(database: Database, new: NewStudy) -> Record:
    """
    Create the study, even if `SCHEDULERS` lacks its scheduler or `SEARCHERS` lacks its searcher.

    If the scheduler is not in `SCHEDULERS`, the row has `FIFO`. If the searcher is not in
    `SEARCHERS`, the row has `RandomSearch`. The simulated workers use the scheduler and the
    searcher of `new`.
    """
    scheduler = new.scheduler if type(new.scheduler) in SCHEDULERS.values() else FIFO()
    searcher = new.searcher if type(new.searcher) in SEARCHERS.values() else RandomSearch()
    study = create(database, replace(new, scheduler=scheduler, searcher=searcher))
    return replace(study, scheduler=new.scheduler, searcher=new.searcher)


def order(recorded: RecordedCurves, seed: int) -> list[int]:
    """Return the curves' indices; without a searcher, trials take the curves in this order."""
    n_curves = len(recorded.curves)
    return random.Random(seed).sample(range(n_curves), n_curves)  # noqa: S311  no secret


def _in_random_order(recorded: RecordedCurves, seed: int) -> Callable[[Claim], int]:
    curves = order(recorded, seed)
    return lambda claim: curves[claim.lease.number]


def _nearest(space: Space, recorded: RecordedCurves) -> Callable[[Claim], int]:
    nearest = NearestCurve(space, recorded.curves)
    return lambda claim: nearest.take(claim.params)
