"""The state of an attempt's process while it runs, and how the attempt ended."""

from dataclasses import dataclass

from msgspec import Struct

from studydb.child.channel import FrameError
from studydb.child.job import TrainableImport
from studydb.child.messages import End, Ended, LostNotice, PreemptNotice, StopNotice
from studydb.domain.attempt_process import Start
from studydb.domain.failures import Failure
from studydb.domain.life.states import Reason
from studydb.domain.trainable import TrainableKind


class Outcome(Struct, frozen=True):
    """How an attempt ended, or why `Attempt.run` is to start another child for it."""

    reason: Reason
    failure: Failure | None = None
    unrestorable: bool = False
    """Whether the checkpoint cannot be restored; `Attempt.run` then tries an older checkpoint."""
    restart: bool = False
    """Whether the child did not run the trial; `Attempt.run` then starts another child."""


Notice = LostNotice | StopNotice | PreemptNotice | None
"""What a child is told; None to continue."""


@dataclass
class Progress:
    """
    The state of one child process of an attempt.

    Attributes:
        notice: The last notice that was sent to the child; None while the attempt may continue.
        began: Whether the child has sent a report, or asked for a flush or an upload. The user's
            function begins earlier (see `Began`).
        judged: Whether the child was ever told to stop or pause, or that the lease is lost.
        deadline_s: The monotonic time at which the child is killed; None while there is no limit.
        next_flush_s: No background flush is tried before this time.
        away_since_s: When the database stopped answering; None while it answers.
        refused: Why a message of the child was refused.
        oom_kills: The value of `oom_kills()` before the child started.
    """

    notice: Notice = None
    began: bool = False
    judged: bool = False
    deadline_s: float | None = None
    ended: Ended | None = None
    next_flush_s: float = 0.0
    away_since_s: float | None = None
    refused: Failure | None = None
    oom_kills: int = 0

    def check_end(self, end: End, to_import: TrainableImport, start: Start | None) -> None:
        """
        Refuse a false `End`, by which the child could hide a failure.

        Args:
            to_import: What the child runs.
            start: How the child was started.

        Raises:
            FrameError: The child's `end` cannot be true.
        """
        if end in (End.STOPPED, End.LOST) and not self.judged:
            raise FrameError(
                "The trial's process claims that it was stopped, but nothing stopped it."
            )
        is_command = to_import.trainable.kind == TrainableKind.COMMAND
        if end is End.GIVEN_BACK and not is_command:
            raise FrameError(
                "The trial's process claims that its command gives the trial back, but the "
                "trainable is no command."
            )
        if end in (End.UNPREPARED, End.NOT_REUSED) and self.began:
            raise FrameError("The trial's process claims that it never began, but it has begun.")
        if end is End.NOT_REUSED and start is not Start.REUSED:
            raise FrameError(
                "The trial's process claims that it ran an earlier trial, but it is a new process."
            )
