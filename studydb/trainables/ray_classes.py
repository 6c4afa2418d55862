"""Run a class that was written for Ray Tune, `ray.tune.Trainable`, as a class of studydb."""

from typing import Any

from studydb.domain.errors import TrainableError
from studydb.trainables.classes import Trainable, check_class

_METHODS = ("setup", "step", "save_checkpoint", "load_checkpoint", "reset_config", "cleanup")


def from_ray(cls: type) -> type[Trainable]:
    """
    Make a `studydb.Trainable` of a class with the methods of `ray.tune.Trainable`.

    The class keeps its methods setup, step, save_checkpoint, load_checkpoint, reset_config and
    cleanup, and has `self.config`, `self.iteration` and `self.training_iteration`. Ray's `__init__`
    is not called, so `trial_id`, `trial_name` and `logdir` are missing. `checkpoint_every` and
    `checkpoint_at_end` can be set on the new class. Ray need not be installed.

    Raises:
        TrainableError: It is no such class, or has only methods of old versions such as `_train`.
    """
    if not isinstance(cls, type):
        raise TrainableError(f"from_ray was given {cls!r}; give a class, not an object.")
    if issubclass(cls, Trainable):
        raise TrainableError(f"{cls.__qualname__} inherits studydb.Trainable; give it as it is.")
    members: dict[str, Any] = {
        "__init__": lambda self: None,  # noqa: ARG005  the attributes are set later
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "iteration": 0,  # in Ray a property, which cannot be set
        "training_iteration": property(lambda self: self.iteration),
    }
    for name in _METHODS:
        home = getattr(getattr(cls, name, None), "__module__", None) or ""
        if home.partition(".")[0] == "ray" and hasattr(Trainable, name):
            members[name] = getattr(Trainable, name)  # the class does not define this method
    adapted = type(cls.__name__, (cls, Trainable), members)
    check_class(adapted)
    return adapted
