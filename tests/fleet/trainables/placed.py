"""Trainables that record their working directory, and write into the directory of their trial."""

import importlib
from pathlib import Path

import studydb


def train(config, trial):
    (trial.directory / "note").touch()
    names = [trial.name, list(trial.tags), trial.uuid, trial.number]
    Path(config["folder"], "where").write_text(f"{Path.cwd()}\n{trial.directory}\n{names}")
    importlib.import_module("valued")  # beside this module, imported only now
    return 0.5


class Placed(studydb.Trainable):
    def setup(self, config):
        self.folder = Path(config["folder"])

    def step(self):
        (self.trial.directory / "note").write_text("from a class")
        (self.folder / "where").write_text(f"{Path.cwd()}\n{self.trial.directory}")
        return {"loss": self.trial.number, "done": True}
