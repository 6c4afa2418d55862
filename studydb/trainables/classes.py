"""Class trainables: a class whose method `step` trains one step."""

import functools
import inspect
import tempfile
import traceback
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Protocol, TypeGuard

from studydb.domain.errors import TrainableError, TrialStopped
from studydb.domain.given_directory import GivenDirectory, UnmadeDirectory
from studydb.domain.text.display import shortened, with_article

EXPORT_ATTRIBUTE = "export_model"
"""The name of a class's method, or of a function's attribute, that writes a checkpoint's model."""


class ClassTrial(Protocol):
    """The part of a trial that a class needs."""

    checkpoint: Any
    start_step: int
    scratch: Path

    @property
    def directory(self) -> Path:
        """The directory that the trial keeps on this host."""

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> bool: ...

    def save(self, checkpoint: Any) -> None: ...


class Trainable:
    """
    Base of class trainables: write `setup` and `step`.

    If trials are to resume, also write `save_checkpoint` and `load_checkpoint`.

    The process of a trial makes one object, and calls `setup`, and `load_checkpoint` if there is a
    checkpoint. Then it calls `step` until studydb asks the trial to end, or `step` returns None or
    a dict with `done=True`. `cleanup` is called last, also after an error. If the class overrides
    `reset_config`, the object may run further trials before `cleanup`. If the class has a method
    `export_model(directory)`, `studydb export-model` calls this method after `setup` and
    `load_checkpoint`.

    Attributes:
        checkpoint_every: A checkpoint is saved at every step that is a multiple of this number. If
            it is 0, checkpoints are saved only as `checkpoint_at_end` says.
        checkpoint_at_end: Whether a checkpoint is also saved when the trial is stopped, paused or
            preempted, and at its last step.
        config: The trial's parameters, with the values that a person has changed, and the study's
            constants.
        trial: The trial that runs, with `number`, `name`, `tags`, `uuid`, `seed`, and `directory`,
            the directory that the trial keeps on this host.
        iteration: The number of the last step; after a restore, the checkpoint's step.
    """

    checkpoint_every: ClassVar[int] = 1
    checkpoint_at_end: ClassVar[bool] = True

    config: dict[str, Any]
    trial: Any
    iteration: int = 0

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare the training."""

    def step(self) -> Mapping[str, Any] | None:
        """
        Train one step.

        Returns:
            The step's metrics; `done=True` among them ends the trial. None if nothing is left to
            train. The first call of an attempt may find nothing left, because an earlier attempt
            may have saved the last step and then died before the trial had ended.
        """
        raise NotImplementedError

    def save_checkpoint(self, directory: str) -> dict[Any, Any] | str | PathLike[str] | None:
        """
        Save the state.

        Args:
            directory: An empty directory for files.

        Returns:
            The state as a dict; or the path of a directory with the state's files; or None if the
            files are in `directory`.
        """
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore a state: the dict that was saved, or the path of the saved directory."""
        raise NotImplementedError

    def reset_config(self, config: dict[str, Any]) -> bool:  # noqa: ARG002  for classes to override
        """
        Prepare this object, which has run a trial, for the next trial; `setup` is not called.

        studydb calls this method after a trial that was completed, stopped or paused, if the
        process can run another trial: for example, the earlier trial must have left no threads and
        no processes. Before the call, `self.config` and `self.trial` are those of the next trial,
        `self.iteration` is 0, and the random generators have the next trial's seed. If the next
        trial has a checkpoint, `load_checkpoint` follows.

        Returns:
            True if nothing of the earlier trial remains in the object. After False, studydb calls
            `cleanup`, and another process calls `setup` and runs the next trial.
        """
        return False

    def cleanup(self) -> None:
        """Release what the object holds."""


def check_class(cls: type) -> None:
    """
    Refuse a class that cannot be a trainable.

    Raises:
        TrainableError: See `check_methods`; or `setup` cannot be called with the config alone.
    """
    check_methods(cls)
    found = inspect.getattr_static(cls, "setup")
    if not isinstance(found, FunctionType | functools.partialmethod):
        return
    try:
        inspect.signature(cls.setup).bind(None, {})  # type: ignore[attr-defined]
    except TypeError as cause:
        raise TrainableError(
            f"{cls.__qualname__}.setup cannot be called with the arguments that it would get: "
            f"{cause}. Write setup(self, config), and give any other parameter a default, or bind "
            "an object to it by studydb.with_parameters."
        ) from None


def check_methods(cls: type) -> None:
    """
    Refuse a class without the methods of a trainable; `setup` may have further parameters.

    Raises:
        TrainableError: The class does not inherit `studydb.Trainable`, lacks a method, or requires
            arguments in `__init__`.
    """
    name = cls.__qualname__
    if not issubclass(cls, Trainable):
        raise TrainableError(
            f"The trainable {name} is a class that does not inherit studydb.Trainable; inherit it, "
            "or give a function."
        )
    if cls.step is Trainable.step:
        raise TrainableError(f"The class {name} has no method step; write step(self) -> metrics.")
    saves = cls.save_checkpoint is not Trainable.save_checkpoint
    loads = cls.load_checkpoint is not Trainable.load_checkpoint
    if saves != loads:
        missing = "load_checkpoint" if saves else "save_checkpoint"
        raise TrainableError(
            f"The class {name} has no method {missing}; to resume a trial, studydb needs "
            "save_checkpoint and load_checkpoint."
        )
    required = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise TrainableError(
            f"The class {name} takes {', '.join(required)} in __init__, but studydb passes nothing "
            "to __init__; read such values in setup(config)."
        )


class NotReset(Exception):
    """`reset_config` has returned False: another process must run the trial."""


def can_reset(cls: object) -> TypeGuard[type[Trainable]]:
    """Whether a trainable is a class that overrides `reset_config`."""
    if not isinstance(cls, type) or not issubclass(cls, Trainable):
        return False
    return cls.reset_config is not Trainable.reset_config


class ClassRun:
    """
    A class that can be called like a trainable function; each call runs one trial.

    Args:
        cls: The class.
        may_keep: Tells whether to keep the object for the next call. It is called if the class
            overrides `reset_config` and a trial has ended by TrialStopped or without an exception.
    """

    def __init__(
        self, cls: type[Trainable], *, may_keep: Callable[[], bool] = lambda: False
    ) -> None:
        self._cls, self._may_keep = cls, may_keep
        self._kept: Trainable | None = None

    @property
    def is_kept(self) -> bool:
        """Whether an object waits for the next call, or for `close`."""
        return self._kept is not None

    def __call__(self, config: dict[str, Any], trial: ClassTrial) -> None:
        """
        Run one trial; return when `step` has returned None.

        Raises:
            TrialStopped: The trial was to end, or `step` has returned `done=True`.
            LeaseLost: The attempt no longer holds its trial.
            NotReset: The kept object cannot run this trial, and its `cleanup` was called.
            TrainableError: `step` or `reset_config` has returned a value of a wrong type.
        """
        kept, self._kept = self._kept, None
        if kept is not None and not _reset(kept, config, trial):
            raise NotReset
        trained = self._cls() if kept is None else kept
        keeps = False
        try:
            if kept is None:
                trained.config, trained.trial = config, trial
                trained.setup(config)
            if trial.checkpoint is not None:
                trained.iteration = trial.start_step
                _load(trained, trial.checkpoint)
            _Loop(trained, trial).run()
        except TrialStopped:
            keeps = can_reset(self._cls) and self._may_keep()
            raise
        else:
            keeps = can_reset(self._cls) and self._may_keep()
        finally:
            if keeps:
                self._kept = trained
            else:
                trained.cleanup()

    def close(self) -> None:
        """Call the `cleanup` of a kept object."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.cleanup()


def _reset(kept: Trainable, config: dict[str, Any], trial: ClassTrial) -> bool:
    before = kept.config, kept.trial, kept.iteration
    kept.config, kept.trial, kept.iteration = config, trial, 0
    try:
        is_reset = _checked_answer(kept.reset_config(config))
    except BaseException:
        kept.cleanup()
        raise
    if not is_reset:
        kept.config, kept.trial, kept.iteration = before
        try:
            kept.cleanup()
        except BaseException:  # noqa: BLE001  an error in cleaning up fails neither of the trials
            traceback.print_exc()
    return is_reset


def _checked_answer(answer: object) -> bool:
    if isinstance(answer, bool):
        return answer
    kind = with_article(type(answer).__name__)
    raise TrainableError(f"reset_config() returned {kind}; return True or False.")


def export_of_class(cls: type[Trainable]) -> Callable[[dict[str, Any], Any, str], None] | None:
    """Return the function that exports a model; None if the class has no method `export_model`."""
    if getattr(cls, EXPORT_ATTRIBUTE, None) is None:
        return None

    def write(config: dict[str, Any], checkpoint: Any, directory: str) -> None:
        trained = cls()
        try:
            trained.config = config
            trained.setup(config)
            trained.iteration = checkpoint.step
            _load(trained, checkpoint)
            getattr(trained, EXPORT_ATTRIBUTE)(directory)
        finally:
            trained.cleanup()

    return write


def _load(trained: Trainable, checkpoint: Any) -> None:
    trained.load_checkpoint(
        checkpoint.to_dict() if checkpoint.data is not None else str(checkpoint.path)
    )


class _Loop:
    def __init__(self, trained: Trainable, trial: ClassTrial) -> None:
        self._trained, self._trial = trained, trial
        self._saves = type(trained).save_checkpoint is not Trainable.save_checkpoint
        self._is_saved = True

    def run(self) -> None:
        trained, every = self._trained, self._trained.checkpoint_every
        while True:
            metrics = trained.step()
            if metrics is None:
                if not self._is_saved and trained.checkpoint_at_end:
                    self._save(self._trial.save)
                return
            if not isinstance(metrics, Mapping):
                kind = with_article(type(metrics).__name__)
                raise TrainableError(f"step() returned {kind}; return a dict of metrics.")
            trained.iteration += 1
            is_last = bool(metrics.get("done")) and trained.checkpoint_at_end
            is_due = bool(every) and trained.iteration % every == 0
            self._report(
                {"training_iteration": trained.iteration, **metrics}, save=is_due or is_last
            )

    def _report(self, metrics: Mapping[str, Any], *, save: bool) -> None:
        save = save and self._saves
        try:
            self._with_checkpoint(metrics, save=save)
        except TrialStopped:
            if self._saves and not save and self._trained.checkpoint_at_end:
                self._with_checkpoint(metrics, save=True)  # raises TrialStopped again
            raise

    def _with_checkpoint(self, metrics: Mapping[str, Any], *, save: bool) -> None:
        self._is_saved = save or not self._saves
        if save:
            self._save(lambda checkpoint: self._trial.report(metrics, checkpoint=checkpoint))
        else:
            self._trial.report(metrics)

    def _save(self, send: Callable[[Any], object]) -> None:
        try:
            made = tempfile.TemporaryDirectory(
                prefix="save-",
                dir=self._trial.scratch,
                ignore_cleanup_errors=True,  # the worker removes the scratch directory
            )
        except OSError as cause:  # for example a full disk: a fault of this host, not of the class
            send(UnmadeDirectory.because(cause))
            return
        with made as directory:
            saved = self._trained.save_checkpoint(directory)
            if isinstance(saved, Mapping) and (left := [*Path(directory).iterdir()]):
                raise TrainableError(
                    "save_checkpoint() returned a dict, but also left "
                    f"{shortened(left[0].name, 80)!r} in the directory, so nothing was saved. "
                    "Return None to save the directory, or write nothing to it."
                )
            send(GivenDirectory(Path(directory)) if saved is None else saved)
