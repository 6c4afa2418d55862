"""A stand-in for a worker's slot: it lets one process run several attempts, one after another."""

import json
import os
import uuid
from pathlib import Path

import studydb
from harness.pickled import by_value
from studydb.child import checkpoint_saves
from studydb.child.job import Job, TrainableImport, write_job
from studydb.child.messages import Answered, Began, End, Ended, read_from_child, write
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable
from studydb.processes import children_of
from studydb.worker.fork_server_client import ForkServer

PATIENCE_S = 20.0


class Reusing:
    """A stand-in for a worker's slot, with one process for all attempts."""

    def __init__(self, fork_server, pump, folder):
        self._server, self._pump, self._folder = fork_server, pump, folder
        self.child, self.outputs = None, []

    def begin(self, trainable, *, config=None, **job):
        """Give the process a job; start the process if there is none."""
        number = len(self.outputs)
        scratch = self._folder / f"scratch-{number}"
        scratch.mkdir()
        output = self._pump.open(self._folder / f"log-{number}")
        self.outputs.append(output)
        if not isinstance(trainable, Trainable):
            trainable = by_value(trainable)
        given = {"seed": 11, "attempt": 1, "may_keep": True, "store": "inline:", **job}
        described = Job(
            to_import=TrainableImport(
                "7f3c5a52-38b0-4a33-9e75-94aee4bb0d0c", trainable, True, (str(self._folder),)
            ),
            trial_uuid=str(uuid.uuid4()),
            number=number,
            config={"x": float(number), **(config or {})},
            objective=Objective("loss", Mode.MIN),
            scratch=str(scratch),
            **given,
        )
        if self.child is None:
            self.child = self._server.spawn(
                lambda: described, stdout=output.stdout, stderr=output.stderr
            )
        else:
            first = write_job(described)
            self.child.take(first, stdout=output.stdout, stderr=output.stderr)
        output.release()

    def receive(self):
        """Return the child's next message other than `Began`; answer it if it has an id."""
        while True:
            frame = self.child.channel.receive(PATIENCE_S)
            assert frame is not None, "the child has sent nothing"
            message = read_from_child(frame)
            if isinstance(message, Began):
                continue
            if getattr(message, "id", None) is not None:
                self.child.channel.send(write(Answered(message.id)))
            return message

    def run(self, trainable, **job):
        """Run an attempt; return its messages, of which the last is `Ended`."""
        self.begin(trainable, **job)
        messages = [self.receive()]
        while not isinstance(messages[-1], Ended):
            messages.append(self.receive())
        return messages

    def facts(self, trainable, **job):
        report, ended = self.run(trainable, **job)
        assert ended.end is End.COMPLETED, ended
        return json.loads(report.result.metrics["facts"])

    def printed(self, number):
        self.outputs[number].settle()
        return self.outputs[number].tail().decode()

    def exit(self):
        return self.child.wait(PATIENCE_S)

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait(PATIENCE_S)
            self.child.channel.close()
        for output in self.outputs:
            output.finish()


class TwoSteps(studydb.Trainable):
    """Trains two steps per trial, each with a checkpoint; its process runs the next trial, too."""

    def setup(self, config):
        checkpoint_saves.LARGE_BYTES = config.get("large_bytes", checkpoint_saves.LARGE_BYTES)
        self.trained = 0

    def reset_config(self, config):  # noqa: ARG002
        self.trained = 0
        return True

    def step(self):
        if self.trained == 2:
            return None
        self.trained += 1
        return {"loss": os.getpid(), "senders": len(children_of(os.getpid()))}

    def save_checkpoint(self, directory):
        Path(directory, "trained").write_text(str(self.trained))

    def load_checkpoint(self, checkpoint):
        self.trained = int(Path(checkpoint, "trained").read_text())


def two_trials(pump, folder, store, **config):
    """Run two trials of `TwoSteps` in one process; return the messages of each trial."""
    server = ForkServer()
    server.start()
    process = Reusing(server, pump, folder)
    try:
        return [process.run(TwoSteps, store=store, config=config) for _ in range(2)]
    finally:
        process.close()
        server.close()
