"""The program of the sender (see sender.py): send one checkpoint after another."""

import os
import socket
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from msgspec import msgpack

from studydb.artifacts.checkpoint_records import Saved
from studydb.child.channel import Channel, Frame, decode
from studydb.child.sender import Answer, Request, outcome_of
from studydb.processes import name_process

NAME = "studydb-sender"
"""The process name of a sender, as `ps` shows it."""

NICENESS = 10
"""
With this niceness, a training that uses all cores gets about nine tenths of the core that it shares
with the sender. With 19, the lowest priority, the sender would get a seventieth of the core, and
the next save would wait.
"""

_LOOK_S = 1.0
"""
How often the sender checks that the trial's process lives. A fork of that process may keep the
socket open, so the end of the process does not always close the socket.
"""

_requests = msgpack.Decoder(Request)


def main(parent_pid: int) -> NoReturn:
    """
    Serve requests of the trial's process, read from standard input.

    This process ends when the trial's process ends or closes the socket.
    """
    os.nice(NICENESS)  # on Linux, for this thread and the threads that it starts later
    name_process(NAME)
    channel = Channel(socket.socket(fileno=0))
    waiting: SimpleQueue[Request] = SimpleQueue()
    threading.Thread(target=_receive, args=(channel, parent_pid, waiting), daemon=True).start()
    while True:
        request = waiting.get()
        answer = Answer(*outcome_of(lambda: _save(request), step=request.step))  # noqa: B023
        channel.send(Frame(msgpack.encode(answer)))


def _receive(channel: Channel, parent_pid: int, waiting: "SimpleQueue[Request]") -> None:
    """
    Take requests until the trial's process ends or closes the socket.

    Then end this process, even during an upload.
    """
    try:
        while os.getppid() == parent_pid:
            if (frame := channel.receive(_LOOK_S)) is not None:
                waiting.put(decode(_requests, frame, sender="trial"))
    finally:
        os._exit(0)


def _save(request: Request) -> Saved:
    path = Path(request.path)
    prepared = path if path.is_dir() else path.read_bytes()
    saver = request.destination.saver(inline_limit_bytes=0)
    return saver.save(prepared, step=request.step, upload=request.upload)
