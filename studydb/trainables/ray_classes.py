"""Run a class that was written for Ray Tune (a `ray.tune.Trainable`) as a class of studydb."""

from typing import Any

from studydb.domain.errors import TrainableError
from studydb.trainables.classes import Trainable, check_methods

_METHODS = ("setup", "step", "save_checkpoint", "load_checkpoint", "reset_config", "cleanup")


def from_ray(cls: type) -> type[Trainable]:
    """
    Make a `studydb.Trainable` of a class with the methods of `ray.tune.Trainable`.

    The new class has the methods setup, step, save_checkpoint, load_checkpoint, reset_config and
    cleanup of `cls`, and `self.config`, `self.iteration` and `self.training_iteration`. If a class
    assigns `self.training_iteration`, this attribute no longer follows `self.iteration`. No
    `__init__` is called, so a class with another `__init__` than Ray's is refused, and Ray's
    attributes `trial_id`, `trial_name` and `logdir` are missing. `checkpoint_every` and
    `checkpoint_at_end` can be set on the new class. Ray need not be installed.

    Raises:
        TrainableError: `cls` is no class, inherits `studydb.Trainable`, lacks `step`, has only one
            of `save_checkpoint` and `load_checkpoint`, or has an `__init__` that is not Ray's.
            Methods of old versions of Ray, such as `_train`, do not count.
    """
    if not isinstance(cls, type):
        raise TrainableError(f"from_ray was given {cls!r}; give a class, not an object.")
    if issubclass(cls, Trainable):
        raise TrainableError(f"{cls.__qualname__} inherits studydb.Trainable; give it as it is.")
    _check_init(cls)
    replaced: dict[str, Any] = {
        "__init__": lambda self: None,  # noqa: ARG005  the attributes are set later
        "iteration": 0,  # in Ray a property, which cannot be set
        "training_iteration": _TrainingIteration(),
    }
    for name in _METHODS:
        if _is_of_ray(getattr(cls, name, None)) and hasattr(Trainable, name):
            replaced[name] = getattr(Trainable, name)  # the class does not define this method
    # The members of `replaced` are in a class without bases, because cloudpickle drops members of a
    # class that equal members of its bases.
    replacing = type("ReplacedForStudydb", (), replaced)
    members = {name: getattr(cls, name) for name in ("__doc__", "__module__", "__qualname__")}
    adapted = type(cls.__name__, (replacing, cls, Trainable), members)
    check_methods(adapted)
    return adapted


class _TrainingIteration:
    """Returns `iteration`; unlike a property, it lets an object assign `training_iteration`."""

    def __get__(self, trained: Any, cls: type) -> int:
        return 0 if trained is None else int(trained.iteration)


def _check_init(cls: type) -> None:
    home = next(each for each in cls.__mro__ if "__init__" in vars(each))
    if home is not object and not _is_of_ray(home):
        raise TrainableError(
            f"{cls.__qualname__} has the method __init__ of {home.__qualname__}, which is never "
            "called; move it to setup(self, config)."
        )


def _is_of_ray(found: object) -> bool:
    home = getattr(found, "__module__", None) or ""
    return home.partition(".")[0] == "ray"
