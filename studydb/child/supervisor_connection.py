"""The child's connection to its worker."""

from studydb.child.channel import Channel
from studydb.child.messages import (
    Answered,
    FlushAsked,
    FromSupervisor,
    LostNotice,
    PreemptNotice,
    Reported,
    StopNotice,
    UploadAsked,
    read_from_supervisor,
    write,
)
from studydb.domain.life.decisions import Verdict


class SupervisorConnection:
    """
    Sends messages to the worker, and remembers what the worker's answers and notices say.

    `send`, `ask` and `listen` raise SystemExit once the worker has ended, because no result can be
    stored.

    Attributes:
        verdict: The verdict on this attempt; None while the attempt may continue.
        lost: Whether the attempt no longer holds its trial.
        stopping: Whether the worker is stopping.
        next_decision_step: The step from which reports wait for an answer; see `Job`.
    """

    def __init__(self, channel: Channel, *, next_decision_step: int | None) -> None:
        self.verdict: Verdict | None = None
        self.lost = self.stopping = False
        self.next_decision_step = next_decision_step
        self._channel = channel
        self._asked = 0

    def send(self, message: Reported | FlushAsked | UploadAsked) -> None:
        """Send a message without waiting for an answer."""
        try:
            self._channel.send(write(message))
        except OSError:
            raise SystemExit(_WORKER_ENDED) from None

    def next_id(self) -> int:
        """Return a new id for a message that the worker must answer."""
        self._asked += 1
        return self._asked

    def ask(self, message: Reported | FlushAsked | UploadAsked) -> Answered:
        """Send a message with an id, and wait without limit for its answer."""
        self.send(message)
        while True:
            answer = self._receive(None)
            if isinstance(answer, Answered) and answer.id == message.id:
                return answer

    def listen(self) -> None:
        """Read the notices that have arrived, without waiting."""
        while self._receive(0) is not None:
            pass

    def _receive(self, timeout_s: float | None) -> FromSupervisor | None:
        try:
            frame = self._channel.receive(timeout_s)
        except (EOFError, OSError):
            raise SystemExit(_WORKER_ENDED) from None
        if frame is None:
            return None
        message = read_from_supervisor(frame)
        self._note(message)
        return message

    def _note(self, message: FromSupervisor) -> None:
        match message:
            case Answered():
                self.verdict = message.verdict or self.verdict
                self.lost = self.lost or message.lost
                self.next_decision_step = message.next_decision_step
            case StopNotice(verdict=verdict):
                self.verdict = verdict
            case LostNotice():
                self.lost = True
            case PreemptNotice():
                self.stopping = True


_WORKER_ENDED = "The worker that ran this trial is gone, so this process exits."
