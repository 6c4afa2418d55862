"""Trainables to which tests bind objects."""

import os

import studydb


def summing(config, data, trial, *, scale=1):
    """
    Report the pid of the parent process, and a loss that is computed from the sum of the data.

    After a warm start the parent is the template.
    """
    trial.report({"loss": float(data.sum()) * scale + config["x"], "parent": os.getppid()})


def yielding(config, *, data):
    yield {"loss": sum(data)}


def taking_any(config, trial, **others):
    return {"loss": sum(others["data"])}


class Summing(studydb.Trainable):
    def setup(self, config, data=()):  # noqa: ARG002  the config is in self.config
        self.data = data

    def step(self):
        return {"loss": sum(self.data), "done": True}
