"""
Trainables that learn to read digits by gradient descent, as a function, a generator and a class.

At each step a linear softmax classifier is trained on the first half of `digits.txt` and tested on
the second half. Before a step, a trainable waits while the file `hold-STEP` exists in the folder.
"""

import time
from pathlib import Path

import numpy as np

import studydb

STEPS, CLASSES = 9, 10


class Softmax:
    """The classifier: weights, data, and one step of gradient descent."""

    def __init__(self, folder, lr, weights=None):
        data = np.loadtxt(Path(folder, "digits.txt"))
        self.folder, self.lr = folder, lr
        self.images = np.hstack([data[:, 1:], np.ones((len(data), 1))])
        self.digits, self.half = data[:, 0].astype(int), len(data) // 2
        size = (self.images.shape[1], CLASSES)
        self.weights = np.zeros(size) if weights is None else np.reshape(weights, size)

    def train(self, step):
        """Descend one step; return the share of unseen digits that are misread."""
        while Path(self.folder, f"hold-{step}").exists():
            time.sleep(0.01)
        images, digits = self.images[: self.half], self.digits[: self.half]
        scores = np.exp(images @ self.weights)
        scores /= scores.sum(axis=1, keepdims=True)
        gradient = images.T @ (scores - np.eye(CLASSES)[digits]) / self.half
        self.weights = self.weights - self.lr * gradient
        read = (self.images[self.half :] @ self.weights).argmax(axis=1)
        return float((read != self.digits[self.half :]).mean())


def train(config, trial):
    saved = trial.checkpoint.to_dict()["weights"] if trial.checkpoint else None
    softmax = Softmax(config["folder"], config["lr"], saved)
    for step in range(trial.start_step + 1, STEPS + 1):
        error = softmax.train(step)
        trial.report({"error": error}, checkpoint={"weights": softmax.weights})


def generate(config, trial):
    """Save at every third step by a report, and yield the metrics of the other steps."""
    saved = trial.checkpoint.to_dict()["weights"] if trial.checkpoint else None
    softmax = Softmax(config["folder"], config["lr"], saved)
    for step in range(trial.start_step + 1, STEPS + 1):
        error = softmax.train(step)
        if step % 3 == 0:
            trial.report({"error": error}, checkpoint={"weights": softmax.weights})
        else:
            yield {"error": error}


class Learner(studydb.Trainable):
    def setup(self, config):
        self.softmax = Softmax(config["folder"], config["lr"])

    def step(self):
        if (step := self.iteration + 1) > STEPS:
            return None
        return {"error": self.softmax.train(step), "done": step == STEPS}

    def save_checkpoint(self, directory):
        np.save(Path(directory, "weights.npy"), self.softmax.weights)

    def load_checkpoint(self, checkpoint):
        self.softmax.weights = np.load(Path(checkpoint, "weights.npy"))
