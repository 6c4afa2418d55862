"""
studydb: a SQL-backed, persistent study store with stateless workers.

Names are resolved when first used, so that `import studydb` in a trainable brings no SQLAlchemy.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from studydb.version import __version__ as __version__

if TYPE_CHECKING:
    from studydb.child.running_trial import report
    from studydb.domain.errors import (
        BudgetSpent,
        CheckpointError,
        InvalidData,
        InvalidName,
        InvalidReport,
        InvalidSpec,
        LeaseLost,
        NoResults,
        NotAllowed,
        StorageError,
        StudydbError,
        StudyDiffers,
        StudyExists,
        StudyFailed,
        TrainableError,
        TrialStopped,
        UnknownStudy,
        UnknownTrial,
        UsageError,
    )
    from studydb.domain.space.search_space import (
        choice,
        constant,
        lograndint,
        loguniform,
        quniform,
        randint,
        uniform,
    )
    from studydb.schedulers import ASHA, FIFO
    from studydb.searchers import GridSearch, RandomSearch
    from studydb.study import Study, create_study, delete_study, load_study

_HOMES = {
    "studydb.child.running_trial": ("report",),
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
        "TrialStopped",
        "UnknownStudy",
        "UnknownTrial",
        "UsageError",
    ),
    "studydb.domain.space.search_space": (
        "choice",
        "constant",
        "lograndint",
        "loguniform",
        "quniform",
        "randint",
        "uniform",
    ),
    "studydb.schedulers": ("ASHA", "FIFO"),
    "studydb.searchers": ("GridSearch", "RandomSearch"),
    "studydb.study": ("Study", "create_study", "delete_study", "load_study"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ASHA",
    "FIFO",
    "BudgetSpent",
    "CheckpointError",
    "GridSearch",
    "InvalidData",
    "InvalidName",
    "InvalidReport",
    "InvalidSpec",
    "LeaseLost",
    "NoResults",
    "NotAllowed",
    "RandomSearch",
    "StorageError",
    "Study",
    "StudyDiffers",
    "StudyExists",
    "StudyFailed",
    "StudydbError",
    "TrainableError",
    "TrialStopped",
    "UnknownStudy",
    "UnknownTrial",
    "UsageError",
    "choice",
    "constant",
    "create_study",
    "delete_study",
    "load_study",
    "lograndint",
    "loguniform",
    "quniform",
    "randint",
    "report",
    "uniform",
]


def __getattr__(name: str) -> Any:
    """Import the home of a public name when it is first used."""
    home = _HOME_OF.get(name)
    if home is None:
        raise _missing(name)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _missing(name: str) -> Exception:
    from studydb.domain.text.other_tools import in_studydb  # noqa: PLC0415  only for a name that is not there

    about = in_studydb(name)
    asker = sys._getframe(2).f_code.co_name  # noqa: SLF001  there is no public way
    if about and asker == "_handle_fromlist":  # `from studydb import NAME`, whose own error
        return ImportError(f"There is no {name!r} in studydb.{about}", name="studydb")  # says less
    told = f"module 'studydb' has no attribute {name!r}"
    # the interpreter looks for near names in `obj`
    return AttributeError(
        f"{told}.{about}" if about else told, name=name, obj=sys.modules[__name__]
    )


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "__version__"])
