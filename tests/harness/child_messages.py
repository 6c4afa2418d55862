"""Reads and checks the messages that a child has sent."""

from studydb.child.messages import End, Ended, Reported
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.states import Reason

STOP = Verdict(Action.STOP, Reason.EARLY_STOPPED, DecidedBy.SCHEDULER)


def steps_of(messages):
    return [m.result.step for m in messages if isinstance(m, Reported) and m.result is not None]


def values_of(messages):
    return [m.result.value for m in messages if isinstance(m, Reported)]


def saved_by(messages):
    """The checkpoints that were saved."""
    return [m.saved for m in messages if isinstance(m, Reported) and m.saved]


def metrics_of(attempt):
    """Finish an attempt that makes one report and completes its trial; return the metrics."""
    report, ended = attempt.finish()
    assert isinstance(report, Reported)
    assert ended == Ended(End.COMPLETED), ended
    return report.result.metrics


def expect_failure(messages, kind, *texts, end=End.FAILED):
    assert isinstance(messages[-1], Ended)
    assert messages[-1].end is end
    failure = messages[-1].failure
    assert failure.type.endswith(kind)
    for text in texts:
        assert text in failure.message
    return failure
