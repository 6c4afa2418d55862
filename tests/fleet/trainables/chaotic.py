"""
A function and a class for crash tests; both report the curve of `chaotic_curve`.

A step is appended to the journal after a call that has stored the step: a flush, or a report that
waits until its checkpoint is stored.
"""

import time
from pathlib import Path

from chaotic_curve import CHECKPOINT_EVERY, FLUSH_EVERY, Journal, metrics, start_bystander

import studydb
from studydb.child import running_trial


def train(config, trial):
    """Report the curve, with a checkpoint every 4 steps and a flush every 3 steps."""
    start = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    journal = Journal(config["journal"], trial.number, trial.attempt)
    start_bystander(trial.number)
    for step in range(start + 1, config["steps"] + 1):
        time.sleep(config["step_s"])
        keeps = step % CHECKPOINT_EVERY == 0
        saved = {"step": step, "weights": weights(config, trial.number)}
        trial.report(metrics(config["x"], step), checkpoint=saved if keeps else None)
        if step % FLUSH_EVERY == 0:
            trial.flush()
        if (keeps and config["save_waits"]) or step % FLUSH_EVERY == 0:
            journal.acknowledge(step)


def weights(config, number):
    """Return the weights to save: `weights_bytes` bytes in every fourth trial, else no bytes."""
    return bytes(config["weights_bytes"] if number % 4 == 0 else 0)


class Chaotic(studydb.Trainable):
    """Reports the curve, and saves a directory of files every 4 steps."""

    checkpoint_every = CHECKPOINT_EVERY

    def setup(self, config):
        trial = running_trial._current
        self.journal = Journal(config["journal"], trial.number, trial.attempt)
        self.reached = self.saved = 0
        start_bystander(trial.number)

    def step(self):
        if self.saved and self.config["save_waits"]:  # the report of step `saved` has returned
            self.journal.acknowledge(self.saved)
            self.saved = 0
        if self.reached == self.config["steps"]:  # an earlier attempt died after the last step
            return None
        time.sleep(self.config["step_s"])
        self.reached += 1
        done = self.reached == self.config["steps"]
        return {**metrics(self.config["x"], self.reached), "done": done}

    def save_checkpoint(self, directory):
        Path(directory, "step").write_text(str(self.reached))
        Path(directory, "weights").write_bytes(weights(self.config, self.trial.number))
        self.saved = self.reached

    def load_checkpoint(self, checkpoint):
        self.reached = int(Path(checkpoint, "step").read_text())
