"""Show a study's definition as text (`create`, `show NAME`) or as data; compare two specs."""

import json
from collections.abc import Mapping
from typing import Any

from studydb.domain.life.rules import Rule, Threshold
from studydb.domain.records import Study
from studydb.domain.resources import Resources
from studydb.domain.scheduling import Scheduler
from studydb.domain.space.domains import Domain
from studydb.domain.space.search_space import Space
from studydb.domain.study_spec import DEFAULTS, StudySpec
from studydb.domain.text.display import shortened
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.schedulers import UserScheduler

LONGEST_LEAF = 200
"""How many characters of a distribution or constant are shown; the JSON output has all."""


def space_lines(space: Space) -> list[str]:
    """Return a line per parameter and constant, in the space's order, in aligned columns."""
    width = max(map(len, space.leaves), default=0)
    return [f"{path.ljust(width)}  {_leaf_text(leaf)}" for path, leaf in space.leaves.items()]


def _leaf_text(leaf: Any) -> str:
    if isinstance(leaf, Domain):
        return shortened(str(leaf), LONGEST_LEAF)
    return f"{shortened(json.dumps(leaf, ensure_ascii=False), LONGEST_LEAF)}  (constant)"


def call_text(spec: Mapping[str, Any] | None) -> str | None:
    """Write a scheduler or searcher as a call: "ASHA(max_t=27, grace_period=1)"."""
    if spec is None:
        return None
    arguments = ", ".join(f"{name}={value!r}" for name, value in spec.items() if name != "name")
    return f"{spec['name']}({arguments})"


def scheduler_text(scheduler: Scheduler) -> str:
    """Write a scheduler as `--scheduler` reads it."""
    if isinstance(scheduler, UserScheduler):
        return str(scheduler)
    return call_text(scheduler.to_json()) or ""


def rule_text(rule: Rule) -> str:
    """Write a stop rule as `--stop` reads it: "loss>=3", "Plateau(metric=loss)"."""
    if isinstance(rule, Threshold):
        return f"{rule.metric}{rule.op}{_bound_text(rule.bound)}"
    return str(rule)


def _bound_text(bound: float) -> str:
    brief = f"{bound:g}"
    return brief if float(brief) == bound else repr(bound).removesuffix(".0")


def trainable_text(trainable: Trainable | None) -> str:
    """Name a study's trainable, and say how a worker finds it."""
    if trainable is None:
        return "none: the user's own program runs the trials, through study.ask()"
    if trainable.kind == TrainableKind.COMMAND:
        files = ", ".join(_files_of(trainable))
        where = f"; workers look for {files} {_places(trainable)}" if files else ""
        return f"the command {trainable.name}{where}"
    if trainable.kind == TrainableKind.PICKLE:
        return f"{trainable.name}, sent by value (Python {trainable.python_version})"
    if trainable.kind == TrainableKind.BOUND:
        return f"{trainable.name} with bound parameters (Python {trainable.python_version})"
    return f"{trainable.name}, imported; workers look for it {_places(trainable)}"


def _places(trainable: Trainable) -> str:
    return f"in their own directory, then in {trainable.workdir}"


def _files_of(trainable: Trainable) -> list[str]:
    try:
        return [str(file) for file in json.loads(trainable.source or b"")["files"]]
    except (ValueError, TypeError, KeyError):  # the row is wrong, or a newer studydb wrote it
        return []


def definition(study: Study, *, checkpoints: str) -> dict[str, Any]:
    """
    Return a study's definition as a dict.

    An argument of `create_study` has its own name as its key, but the study's name has the key
    "study". Other keys, such as "uuid", belong to no argument.

    Args:
        checkpoints: The URL of the study's store, or of the default store if the study names none.
    """
    trainable = study.trainable
    return {
        "study": study.name,
        "uuid": study.uuid,
        "metric": study.objective.metric,
        "mode": str(study.objective.mode),
        "space": study.space.to_json(),
        "scheduler": study.scheduler.to_json(),
        "searcher": None if study.searcher is None else study.searcher.to_json(),
        "seed": study.seed,
        "stop": [rule_text(rule) for rule in study.rules],
        "grid_size": study.num_draws,
        **study.settings_json(),
        "checkpoints": checkpoints,
        "trainable": trainable and trainable.name,
        "trainable_kind": trainable and trainable.kind,
        "workdir": trainable and trainable.workdir,
        "signed_by": sorted(trainable.signatures) if trainable else [],
        "created_at": study.created_at,
        "created_by": study.created_by,
    }


def definition_page(study: Study, *, checkpoints: str) -> dict[str, str | None]:
    """
    Return the lines of the study's definition except its space: each line's title and text.

    A line whose text is None is not shown.
    """
    budget = "no limit" if study.num_trials is None else str(study.num_trials)
    most_losses_at_step = study.losses_at_step
    if study.num_draws is not None:
        budget += f" (the grid has {study.num_draws})"
    return {
        "study": study.name,
        "metric": str(study.objective),
        "trainable": trainable_text(study.trainable),
        "scheduler": scheduler_text(study.scheduler),
        "searcher": call_text(study.searcher.to_json() if study.searcher else None),
        "seed": str(study.seed),
        "stop": ", ".join(map(rule_text, study.rules)) or None,
        "trials": budget,
        "max concurrent": None if study.max_concurrent is None else str(study.max_concurrent),
        "failures": f"a trial survives {_limit(study.max_failures)}",
        "lost attempts": f"a trial survives {_limit(study.max_losses)} between two checkpoints"
        + (
            ""
            if most_losses_at_step is None
            else f", but not {most_losses_at_step} in a row at the same step"
        ),
        **{
            name: str(value)
            for name, value in study.settings().items()
            if name not in _WITH_LINES and value != DEFAULTS[name]
        },
        "checkpoints": checkpoints,
        "created": f"{study.created_at:%Y-%m-%d %H:%M:%SZ}"
        + (f" by {study.created_by}" if study.created_by else ""),
    }


_WITH_LINES = ("num_trials", "max_concurrent", "max_failures", "max_losses", "losses_at_step")
"""
Settings for which `definition_page` has lines. The other settings have a line only if their values
are not the defaults.
"""


def differences(found: StudySpec, asked: StudySpec, defaults: StudySpec) -> dict[str, str]:
    """
    Describe how a study differs from the spec that a user asked for.

    Only scheduler, searcher, stop rules, checkpoint store and settings are compared.

    Args:
        defaults: The default spec; a value of `asked` that equals its default is not compared.

    Returns:
        For each argument that differs, a text such as "num_trials is 30, not 50".
    """
    differing = {}
    for name in ("scheduler", "searcher", "stop", "checkpoints", *DEFAULTS):
        old, new, default = (_spec_text(each, name) for each in (found, asked, defaults))
        # `losses_at_step` is not an argument: `create_study` sets it if `max_losses` is not given.
        is_alike = new in (old, default) or (name == "resources" and _ask_alike(found, asked))
        if not is_alike and name != "losses_at_step":
            differing[name] = f"{name} is {old}, not {new}"
    return differing


def _ask_alike(found: StudySpec, asked: StudySpec) -> bool:
    """Whether two studies ask for the same resources; older versions rounded 2/3 up."""
    old, new = found.resources, asked.resources
    return isinstance(old, Resources) and isinstance(new, Resources) and old.is_close(new)


def _spec_text(spec: StudySpec, name: str) -> str:
    match name:
        case "scheduler":
            return scheduler_text(spec.scheduler)
        case "searcher":
            return call_text(spec.searcher.to_json() if spec.searcher else None) or "none"
        case "stop":
            return ", ".join(map(rule_text, spec.rules)) or "none"
    return str(getattr(spec, name))


def _limit(number: int) -> str:
    return "any number" if number < 0 else str(number)
