"""
The decider: a process that runs custom stop rules, custom schedulers and resource functions.

The fork server starts a decider like a trial: without the database's credentials,
the signing key or inherited descriptors, in a new process group, with its output
captured. One worker asks the decider one question at a time:

```
worker → decider                                     decider → worker
begin     the code of all objects that decide        ready     how many last results each rule reads
                                                     unready   why an object cannot be made
question  an object, a method, and plain data        decided   plain data
                                                     raised    the error of the method
                                                     outdated  why the decider must be replaced
```
The worker does not trust the decider: it decodes the answers by strict types, and kills a decider
that does not answer in time. To let other code decide, add its role to `_MAKERS` and its methods
to `_METHODS`.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Raw, Struct, msgpack

from studydb.artifacts.checkpoint_records import Count
from studydb.child import run
from studydb.child.channel import Channel, Frame, FrameError
from studydb.child.forking import Outdated
from studydb.child.job import TrainableImport
from studydb.child.staleness import Staleness
from studydb.child.streams import flush_streams, prepare_streams
from studydb.domain.custom_scheduler import JUDGE, NEXT_WORK
from studydb.domain.failures import Failure, failure_of
from studydb.domain.trainable import TrainableRole
from studydb.processes import STOP_SIGNALS, name_process
from studydb.trainables import custom_rules, custom_schedulers, resource_functions

NAME = "studydb-decider"
"""The process name of a decider, as `ps` shows it."""

_MAKERS = {
    TrainableRole.RULE: custom_rules.make_rule,
    TrainableRole.SCHEDULER: custom_schedulers.make_scheduler,
    TrainableRole.RESOURCES: resource_functions.keep_loaded,
}
_METHODS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    custom_rules.METHOD: custom_rules.ask_rule,
    custom_schedulers.DECLARED: custom_schedulers.declared_plan,
    JUDGE: custom_schedulers.ask_judge,
    NEXT_WORK: custom_schedulers.ask_next_work,
    resource_functions.REQUEST: resource_functions.ask_function,
    resource_functions.DEFAULT: resource_functions.ask_default,
}


class Begin(Struct, frozen=True, tag="begin"):
    """The first message: the code of the objects that decide; their order gives their positions."""

    objects: tuple[TrainableImport, ...]


class Question(Struct, frozen=True, tag="question"):
    """Calls a method of the object at a position; the payload is the method's arguments as JSON."""

    id: int
    position: int
    method: str


class Ready(Struct, frozen=True, tag="ready"):
    """
    All objects are made.

    Attributes:
        reads: For each rule, how many of a trial's last results it reads; 0 for other objects.
    """

    reads: tuple[int, ...]


class Unready(Struct, frozen=True, tag="unready"):
    """The object at a position cannot be made, so the process ends."""

    position: Count
    failure: Failure


class Decided(Struct, frozen=True, tag="decided"):
    """The answer to a question; the caller decodes `value` by the type that it expects."""

    id: int
    value: Raw


class Raised(Struct, frozen=True, tag="raised"):
    """The user's code has raised an exception, or its answer is not plain data."""

    id: int
    failure: Failure


FromDecider = Ready | Unready | Decided | Raised | Outdated

_begin: msgpack.Decoder[Begin] = msgpack.Decoder(Begin)
_questions: msgpack.Decoder[Question] = msgpack.Decoder(Question)
_answers: msgpack.Decoder[FromDecider] = msgpack.Decoder(FromDecider)


def write_begin(objects: tuple[TrainableImport, ...]) -> Frame:
    """Encode the first message."""
    return Frame(msgpack.encode(Begin(objects)))


def write_question(question: Question, arguments: Mapping[str, Any]) -> Frame:
    """Encode a question; the arguments are JSON, because MessagePack's integers have 64 bits."""
    return Frame(msgpack.encode(question), json.dumps(arguments).encode())


def read_from_decider(frame: Frame) -> FromDecider:
    """
    Decode a message of a decider.

    Raises:
        FrameError: The frame is not a message of a decider.
    """
    try:
        return _answers.decode(frame.header)
    except Exception as cause:  # a decoder may raise anything for hostile bytes
        why = f"{type(cause).__name__}: {cause}"
        raise FrameError(f"The decider sent a frame that is not a message: {why}.") from cause


def main(channel: Channel) -> None:
    """Make the objects that the first message names; answer questions until the channel closes."""
    prepare_streams()
    for number in STOP_SIGNALS:  # a service manager signals all processes; the worker ends this one
        signal.signal(number, signal.SIG_IGN)
    name_process(NAME)
    # If a fork made by the user's code kept the socket, the worker would not see the decider end.
    os.register_at_fork(after_in_child=channel.close)
    run.end_with(_serve, channel)


def _serve(channel: Channel) -> int:
    frame = channel.receive()
    assert frame is not None
    objects, reads, began_ns = [], [], time.time_ns()
    for position, to_import in enumerate(_begin.decode(frame.header).objects):
        try:
            objects.append(made := _made(to_import))
            is_rule = to_import.trainable.role == TrainableRole.RULE
            reads.append(custom_rules.declared_reads(made) if is_rule else 0)
        except BaseException as cause:  # noqa: BLE001  the user's module may raise anything
            traceback.print_exc()
            flush_streams()
            _send(channel, Unready(position, failure_of(cause)))
            return 1
    staleness = _staleness(began_ns)
    _send(channel, Ready(tuple(reads)))
    is_first = True
    with suppress(EOFError):
        while (frame := channel.receive()) is not None:
            question = _questions.decode(frame.header)
            # The first question is always answered. The wrong clock of a file server can make every
            # new process seem outdated. If each refused its first question, none would be answered.
            reason = None if is_first else _reason_against(staleness)
            is_first = False
            if reason is not None:
                _send(channel, Outdated(question.id, reason))
                continue
            _send(channel, _answer(objects[question.position], question, frame.payload))
    return 0


def _made(to_import: TrainableImport) -> Any:
    run.prepare(to_import)
    code = to_import.trainable
    return _MAKERS[TrainableRole(code.role)](code, run.import_trainable(to_import))


def _answer(asked: Any, question: Question, payload: bytes) -> Decided | Raised:
    try:
        value = _METHODS[question.method](asked, json.loads(payload))
        return Decided(question.id, Raw(msgpack.encode(value)))
    except BaseException as cause:  # noqa: BLE001  sys.exit() is a failure of the user's code, too
        traceback.print_exc()
        return Raised(question.id, failure_of(cause))
    finally:
        flush_streams()


def _staleness(began_ns: int) -> Staleness | None:
    with suppress(OSError):  # this host does not show the memory of a process
        return Staleness(began_ns)
    return None


def _reason_against(staleness: Staleness | None) -> str | None:
    if staleness is None:
        return None
    with suppress(OSError):  # for example, this process can open no more files
        return staleness.reason_after_trial()
    return None


def _send(channel: Channel, message: FromDecider) -> None:
    channel.send(Frame(msgpack.encode(message)))
