"""
Read a W&B sweep file into the arguments of `create_study`.

The keys are those of https://docs.wandb.ai/models/sweeps/define-sweep-configuration.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from studydb.domain.errors import InvalidSpec, UsageError
from studydb.domain.scheduling import Scheduler
from studydb.domain.searching import Searcher
from studydb.domain.space.leaves import constant
from studydb.domain.space.search_space import (
    Space,
    choice,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.text.suggestions import did_you_mean
from studydb.schedulers import ASHA
from studydb.searchers import GridSearch, OptunaSearch, RandomSearch
from studydb.trainables import Command

_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
"""The command that W&B runs if a sweep file has no key `command`."""

_NO_END = 10**9
"""A `max_t` that no trial reaches, for a sweep that does not say how long a trial trains."""

_MOST_MULTIPLES = 100
"""
A `q_uniform` of integers with `q` above 1 becomes a `choice` of up to this many multiples; if it
has more, it becomes `quniform`, which draws doubles.
"""

_NUMBERS = ("min", "max", "q")
_EXPONENT = re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+")

_IGNORED = {"name", "description", "project", "entity", "version", "$schema"}
_READ = {"program", "method", "metric", "parameters", "early_terminate", "command", "run_cap"}


def read_sweep(path: str) -> dict[str, Any]:
    """
    Read a sweep file.

    Returns:
        Arguments of `create_study`: the trainable, the space and the searcher; and metric, mode,
        num_trials and scheduler if the file has them.

    Raises:
        InvalidSpec: The file cannot be read, or asks for what studydb cannot do.
        UsageError: PyYAML is not installed.
    """
    try:
        from yaml import YAMLError, safe_load  # noqa: PLC0415  PyYAML is optional
    except ImportError:
        raise UsageError("Sweep files need PyYAML: pip install 'studydb[sweeps]'.") from None
    try:
        sweep = safe_load(Path(path).read_text(encoding="utf-8"))
        return _read(_mapping(sweep, "the file"))
    except OSError as error:
        raise InvalidSpec(f"Cannot read {path!r}: {error.strerror}.") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path!r} is not YAML: {' '.join(str(error).split())}.") from None
    except (InvalidSpec, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidSpec(f"{path!r}: {error}") from None


def _read(sweep: Mapping[str, Any]) -> dict[str, Any]:
    for key in map(str, sweep.keys() - _READ - _IGNORED):
        raise InvalidSpec(
            f"studydb does not know the key {key!r} of sweep files.{did_you_mean(key, _READ)}"
        )
    found: dict[str, Any] = {
        "trainable": Command(_command(sweep)),
        "space": Space.read(_space(_mapping(sweep.get("parameters", {}), "parameters"))),
        "searcher": _searcher(sweep.get("method", "random")),
    }
    metric = _mapping(sweep.get("metric", {}), "metric")
    if "name" in metric:
        goals = {"minimize": "min", "maximize": "max"}
        found["metric"] = metric["name"]
        found["mode"] = goals[_one_of(metric.get("goal", "minimize"), goals, "metric.goal")]
    if "run_cap" in sweep:
        found["num_trials"] = sweep["run_cap"]
    if "early_terminate" in sweep:
        found["scheduler"] = _scheduler(_mapping(sweep["early_terminate"], "early_terminate"))
    return found


def _command(sweep: Mapping[str, Any]) -> list[str]:
    program, items = sweep.get("program"), sweep.get("command", _COMMAND)
    if not isinstance(items, list | tuple):
        raise InvalidSpec(f"command is {items!r}; it must be a list.")
    if program is None and "${program}" in items:
        raise InvalidSpec("The command needs ${program}; add the key 'program' to the file.")
    return [str(program) if item == "${program}" else str(item) for item in items]


def _space(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _leaf(_mapping(spec, name), name) for name, spec in parameters.items()}


def _leaf(spec: Mapping[str, Any], name: str) -> Any:
    if "parameters" in spec:
        return _space(_mapping(spec["parameters"], name))
    if "probabilities" in spec:
        raise InvalidSpec(
            f"Parameter {name!r} has probabilities, but studydb draws all choices equally often; "
            "remove them."
        )
    kind = spec["distribution"] if "distribution" in spec else _implied(spec, name)
    read = _DISTRIBUTIONS[_one_of(kind, _DISTRIBUTIONS, f"{name}.distribution")]
    _check_numbers(spec, name)
    try:
        return read(spec)
    except KeyError as missing:
        raise InvalidSpec(f"Parameter {name!r} lacks {missing}.") from None
    except (InvalidSpec, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidSpec(f"Parameter {name!r}: {error}") from None


def _check_numbers(spec: Mapping[str, Any], name: str) -> None:
    for key in _NUMBERS:
        value = spec.get(key)
        if isinstance(value, str):
            cure = "Write a number."
            if _EXPONENT.fullmatch(value):
                cure = (
                    "In YAML a number with an exponent needs a point and a sign: write 1.0e-5, not "
                    "1e-5."
                )
            raise InvalidSpec(f"Parameter {name!r}: YAML reads {key}, {value!r}, as a text. {cure}")


def _implied(spec: Mapping[str, Any], name: str) -> str:
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical"
    if "min" in spec and "max" in spec:
        are_integers = isinstance(spec["min"], int) and isinstance(spec["max"], int)
        return "int_uniform" if are_integers else "uniform"
    raise InvalidSpec(f"Parameter {name!r} has neither value, values, nor min and max.")


_DISTRIBUTIONS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "constant": lambda spec: constant(spec["value"]),
    "categorical": lambda spec: choice(spec["values"]),
    "int_uniform": lambda spec: randint(spec["min"], spec["max"]),
    "uniform": lambda spec: uniform(spec["min"], spec["max"]),
    "q_uniform": lambda spec: _quantized(spec["min"], spec["max"], spec.get("q", 1)),
    "log_uniform": lambda spec: loguniform(math.exp(spec["min"]), math.exp(spec["max"])),
    "log_uniform_values": lambda spec: loguniform(spec["min"], spec["max"]),
}


def _quantized(low: Any, high: Any, q: Any) -> Any:
    """
    Return a distribution of multiples of `q`.

    The multiples are integers if `low`, `high` and `q` are integers, and either `q` is 1 or there
    are at most 100 multiples.
    """
    if not all(isinstance(number, int) for number in (low, high, q)) or q < 1:
        return quniform(low, high, q)
    if q == 1:
        return randint(low, high)
    multiples = range(-(-low // q) * q, high + 1, q)
    if 1 <= len(multiples) <= _MOST_MULTIPLES:
        return choice(list(multiples))
    return quniform(low, high, q)


def _searcher(method: Any) -> Searcher:
    makers: dict[str, Callable[[], Searcher]] = {
        "random": RandomSearch,
        "grid": GridSearch,
        "bayes": lambda: OptunaSearch("TPESampler"),
    }
    return makers[_one_of(method, makers, "method")]()


def _scheduler(spec: Mapping[str, Any]) -> Scheduler:
    """
    Turn W&B's hyperband into ASHA; rungs are at W&B's steps if all these steps are whole numbers.

    With `min_iter`, W&B's steps are min_iter * eta^k. With `max_iter` and `s`, they are
    max_iter / eta^k for k from 1 to s; if eta^s does not divide max_iter, ASHA's steps are later.
    With `max_iter`, ASHA also completes a trial at step max_iter.
    """
    _one_of(spec.get("type"), ["hyperband"], "early_terminate.type")
    eta = spec.get("eta", 3)
    if "min_iter" in spec:
        return ASHA(max_t=_NO_END, grace_period=spec["min_iter"], reduction_factor=eta)
    if "max_iter" in spec:
        first = math.ceil(spec["max_iter"] / eta ** spec.get("s", 1))
        return ASHA(max_t=spec["max_iter"], grace_period=max(1, first), reduction_factor=eta)
    raise InvalidSpec("early_terminate has neither min_iter nor max_iter.")


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSpec(f"{name} is {value!r}; it must be a mapping.")
    return value


def _one_of(value: Any, known: Any, name: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise InvalidSpec(
            f"{name} is {value!r}; studydb knows {', '.join(known)}."
            f"{did_you_mean(str(value), known)}"
        )
    return str(value)
