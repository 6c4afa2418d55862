"""Class trainables: a class whose method `step` trains one step."""

import inspect
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Protocol

from studydb.domain.errors import TrainableError, TrialStopped
from studydb.domain.text.display import with_article


class ClassTrial(Protocol):
    """The part of a trial that a class needs."""

    checkpoint: Any
    start_step: int
    scratch: Path

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None: ...


class Trainable:
    """
    Base of class trainables: write `setup` and `step`, and both checkpoint methods to resume.

    The process of a trial makes one object, calls `setup`, then `load_checkpoint` if there is a
    checkpoint, then `step` until the trial ends: by a rule, a scheduler, a person, or because
    `step` returned a dict with `done=True`, or None. `cleanup` is called last, also after an error.

    Attributes:
        checkpoint_every: A checkpoint is saved at every step that this divides; 0 for none.
        checkpoint_at_end: Whether one is also saved when the trial is stopped, paused or preempted,
            and at its last step.
        config: The trial's parameters and the study's constants.
        iteration: The number of the last step; after a restore, the checkpoint's step.
    """

    checkpoint_every: ClassVar[int] = 1
    checkpoint_at_end: ClassVar[bool] = True

    config: dict[str, Any]
    iteration: int = 0

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare the training."""

    def step(self) -> Mapping[str, Any] | None:
        """
        Train one step.

        Returns:
            The step's metrics; `done=True` among them ends the trial. Or None, if nothing is left
            to train: a process may die after it has saved the last step and before its trial has
            ended, and the next attempt then begins after the last step.
        """
        raise NotImplementedError

    def save_checkpoint(self, directory: str) -> dict[Any, Any] | str | PathLike[str] | None:
        """
        Save the state.

        Args:
            directory: An empty directory for files.

        Returns:
            The state as a dict; or the path of a directory with the files; or None if they are in
            `directory`.
        """
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restore a state: the dict that was saved, or the path of the saved directory."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release what the object holds."""


def check_class(cls: type) -> None:
    """
    Refuse a class that cannot be a trainable.

    Raises:
        TrainableError: It does not inherit `studydb.Trainable`, or lacks a method.
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
            f"The class {name} has no method {missing}; a trial that is resumed needs both."
        )
    required = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise TrainableError(
            f"The class {name} takes {', '.join(required)} in __init__; read them in setup(config)."
        )


def run_class(cls: type[Trainable], config: dict[str, Any], trial: ClassTrial) -> None:
    """
    Run one trial of a class; it ends by an exception of `trial.report`, or of the class itself.

    Raises:
        TrialStopped, LeaseLost: The trial was to end, or `step` has returned `done=True`.
        TrainableError: `step` has returned neither a dict nor None.
    """
    trained = cls()
    trained.config = config
    try:
        trained.setup(config)
        if trial.checkpoint is not None:
            _load(trained, trial.checkpoint)
            trained.iteration = trial.start_step
        _Loop(trained, trial).run()
    finally:
        trained.cleanup()


def _load(trained: Trainable, checkpoint: Any) -> None:
    trained.load_checkpoint(
        checkpoint.to_dict() if checkpoint.data is not None else str(checkpoint.path)
    )


class _Loop:
    def __init__(self, trained: Trainable, trial: ClassTrial) -> None:
        self._trained, self._trial = trained, trial
        self._saves = type(trained).save_checkpoint is not Trainable.save_checkpoint

    def run(self) -> None:
        trained, every = self._trained, self._trained.checkpoint_every
        while True:
            metrics = trained.step()
            if metrics is None:
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
                self._with_checkpoint(metrics, save=True)  # raises again
            raise

    def _with_checkpoint(self, metrics: Mapping[str, Any], *, save: bool) -> None:
        if not save:
            self._trial.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="save-", dir=self._trial.scratch) as directory:
            saved = self._trained.save_checkpoint(directory)
            self._trial.report(metrics, checkpoint=directory if saved is None else saved)
