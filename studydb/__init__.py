"""
studydb: a SQL-backed, persistent study store with stateless workers.

Public names are imported when first used, so that `import studydb` in a trainable loads no
SQLAlchemy. To add a public name, import it under `TYPE_CHECKING` and list it in `_HOMES`.
"""

import sys

from studydb.version import __version__ as __version__

TYPE_CHECKING = False
"""Type checkers assume that this variable is true. Importing `typing` would take 5 ms."""

if TYPE_CHECKING:
    from typing import Any

    from studydb.analysis.recorded_curves import RecordedCurves as RecordedCurves
    from studydb.analysis.simulated import Simulation as Simulation
    from studydb.child.running_trial import RunningTrial
    from studydb.child.running_trial import checkpoint as checkpoint
    from studydb.child.running_trial import config as config
    from studydb.child.running_trial import report as report
    from studydb.domain.custom_scheduler import CustomScheduler as CustomScheduler
    from studydb.domain.errors import BudgetSpent as BudgetSpent
    from studydb.domain.errors import CheckpointError as CheckpointError
    from studydb.domain.errors import InvalidData as InvalidData
    from studydb.domain.errors import InvalidName as InvalidName
    from studydb.domain.errors import InvalidReport as InvalidReport
    from studydb.domain.errors import InvalidSpec as InvalidSpec
    from studydb.domain.errors import LeaseLost as LeaseLost
    from studydb.domain.errors import NoResults as NoResults
    from studydb.domain.errors import NotAllowed as NotAllowed
    from studydb.domain.errors import StorageError as StorageError
    from studydb.domain.errors import StudydbError as StudydbError
    from studydb.domain.errors import StudyDiffers as StudyDiffers
    from studydb.domain.errors import StudyExists as StudyExists
    from studydb.domain.errors import StudyFailed as StudyFailed
    from studydb.domain.errors import TrainableError as TrainableError
    from studydb.domain.errors import TrialExists as TrialExists
    from studydb.domain.errors import TrialStopped as TrialStopped
    from studydb.domain.errors import UnknownStudy as UnknownStudy
    from studydb.domain.errors import UnknownTrial as UnknownTrial
    from studydb.domain.errors import UsageError as UsageError
    from studydb.domain.life.custom_rule import StopRule as StopRule
    from studydb.domain.life.custom_rule import TrialView as TrialView
    from studydb.domain.life.decisions import Action as Action
    from studydb.domain.life.decisions import Decision as Decision
    from studydb.domain.life.decisions import Entry as Entry
    from studydb.domain.life.decisions import RungKey as RungKey
    from studydb.domain.life.plateau import Plateau as Plateau
    from studydb.domain.life.retention import Keep as Keep
    from studydb.domain.life.retry_policy import Retry as Retry
    from studydb.domain.life.states import Reason as Reason
    from studydb.domain.life.states import State as State
    from studydb.domain.life.states import Status as Status
    from studydb.domain.records import Counts as Counts
    from studydb.domain.scheduling import Close as Close
    from studydb.domain.scheduling import Idle as Idle
    from studydb.domain.scheduling import Scheduler as Scheduler
    from studydb.domain.searching import Searcher as Searcher
    from studydb.domain.space.search_space import Space as Space
    from studydb.domain.space.search_space import choice as choice
    from studydb.domain.space.search_space import constant as constant
    from studydb.domain.space.search_space import lograndint as lograndint
    from studydb.domain.space.search_space import loguniform as loguniform
    from studydb.domain.space.search_space import quniform as quniform
    from studydb.domain.space.search_space import randint as randint
    from studydb.domain.space.search_space import uniform as uniform
    from studydb.lease.own_trial import OwnTrial as OwnTrial
    from studydb.schedulers import ASHA as ASHA
    from studydb.schedulers import FIFO as FIFO
    from studydb.schedulers import HyperBand as HyperBand
    from studydb.schedulers import MedianStopping as MedianStopping
    from studydb.schedulers import OneEpoch as OneEpoch
    from studydb.searchers import GridSearch as GridSearch
    from studydb.searchers import OptunaSearch as OptunaSearch
    from studydb.searchers import RandomSearch as RandomSearch
    from studydb.study import Study as Study
    from studydb.study import create_study as create_study
    from studydb.study import delete_study as delete_study
    from studydb.study import load_study as load_study
    from studydb.study.frozen_trial import FrozenTrial as FrozenTrial
    from studydb.study.simulation import simulate as simulate
    from studydb.trainables import Command as Command
    from studydb.trainables import Trainable as Trainable
    from studydb.trainables import with_parameters as with_parameters
    from studydb.trainables.ray_classes import from_ray as from_ray

    Trial = RunningTrial

_HOMES = {
    "studydb.analysis.recorded_curves": ("RecordedCurves",),
    "studydb.analysis.simulated": ("Simulation",),
    "studydb.child.running_trial": ("Trial", "checkpoint", "config", "report"),
    "studydb.domain.errors": (
        "BudgetSpent",
        "CheckpointError",
        "InvalidData",
        "InvalidName",
        "InvalidReport",
        "InvalidSpec",
        "LeaseLost",
        "NoResults",
        "NotAllowed",
        "StorageError",
        "StudyDiffers",
        "StudyExists",
        "StudyFailed",
        "StudydbError",
        "TrainableError",
        "TrialExists",
        "TrialStopped",
        "UnknownStudy",
        "UnknownTrial",
        "UsageError",
    ),
    "studydb.domain.custom_scheduler": ("CustomScheduler",),
    "studydb.domain.life.custom_rule": ("StopRule", "TrialView"),
    "studydb.domain.life.decisions": ("Action", "Decision", "Entry", "RungKey"),
    "studydb.domain.life.plateau": ("Plateau",),
    "studydb.domain.life.retention": ("Keep",),
    "studydb.domain.life.retry_policy": ("Retry",),
    "studydb.domain.life.states": ("Reason", "State", "Status"),
    "studydb.domain.records": ("Counts",),
    "studydb.domain.space.search_space": (
        "Space",
        "choice",
        "constant",
        "lograndint",
        "loguniform",
        "quniform",
        "randint",
        "uniform",
    ),
    "studydb.domain.scheduling": ("Close", "Idle", "Scheduler"),
    "studydb.domain.searching": ("Searcher",),
    "studydb.lease.own_trial": ("OwnTrial",),
    "studydb.schedulers": ("ASHA", "FIFO", "HyperBand", "MedianStopping", "OneEpoch"),
    "studydb.searchers": ("GridSearch", "OptunaSearch", "RandomSearch"),
    "studydb.study": ("Study", "create_study", "delete_study", "load_study"),
    "studydb.study.frozen_trial": ("FrozenTrial",),
    "studydb.study.simulation": ("simulate",),
    "studydb.trainables": ("Command", "Trainable", "with_parameters"),
    "studydb.trainables.ray_classes": ("from_ray",),
}

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_NAME_AT_HOME = {"Trial": "RunningTrial"}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> "Any":
    """Import the module that defines a public name, when the name is first used."""
    from importlib import import_module  # noqa: PLC0415  `studydb report` needs no public name

    home = _HOME_OF.get(name)
    if home is None:
        raise _missing(name)
    value = getattr(import_module(home), _NAME_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def _missing(name: str) -> Exception:
    from studydb.domain.text.other_tools import in_studydb  # noqa: PLC0415  only a missing name needs it

    translation = in_studydb(name)
    caller = sys._getframe(2).f_code.co_name  # noqa: SLF001  `inspect` is slow to import
    if translation and caller == "_handle_fromlist":  # in `from studydb import NAME`
        return ImportError(f"There is no {name!r} in studydb.{translation}", name="studydb")
    message = f"module 'studydb' has no attribute {name!r}"
    if translation:
        message += f".{translation}"
    # with `obj`, the interpreter's message suggests similar names of this module
    return AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
