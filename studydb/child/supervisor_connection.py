"""The child's side of the conversation with its supervisor."""

from studydb.child.channel import Channel, Frame
from studydb.child.messages import (
    Answered,
    FlushAsked,
    FromSupervisor,
    LostNotice,
    Reported,
    StopNotice,
    read_from_supervisor,
    write,
)
from studydb.domain.life.decisions import Verdict


class SupervisorConnection:
    """
    Speaks to the supervisor and remembers what it was told.

    Once the supervisor is gone there is nothing left to train for: SystemExit.

    Attributes:
        verdict: What stands against this attempt; None to go on.
        lost: Whether the trial is somebody else's.
        next_decision_step: The step from which a report waits for its answer.
    """

    def __init__(self, channel: Channel, *, next_decision_step: int | None) -> None:
        """Speak over this channel."""
        self.verdict: Verdict | None = None
        self.lost = False
        self.next_decision_step = next_decision_step
        self._channel = channel
        self._asked = 0

    def tell(self, message: Reported) -> None:
        """Send a report that nobody waits for."""
        self._send(write(message))

    def next_id(self) -> int:
        """Number a message that is to be answered."""
        self._asked += 1
        return self._asked

    def ask(self, message: Reported | FlushAsked) -> None:
        """Send a message with an id and wait for its answer, however long that takes."""
        self._send(write(message))
        while True:
            answer = self._receive(None)
            if isinstance(answer, Answered) and answer.id == message.id:
                return

    def listen(self) -> None:
        """Take in what came unasked, without waiting."""
        while self._receive(0) is not None:
            pass

    def _send(self, frame: Frame) -> None:
        try:
            self._channel.send(frame)
        except OSError:
            raise SystemExit(_GONE) from None

    def _receive(self, timeout_s: float | None) -> FromSupervisor | None:
        try:
            frame = self._channel.receive(timeout_s)
        except (EOFError, OSError):
            raise SystemExit(_GONE) from None
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


_GONE = "The worker of this trial is gone; its process ends."
