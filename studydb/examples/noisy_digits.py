"""
A network that learns digits, 15 % of which have wrong labels; the trials' learning curves cross.

The order of two configurations after the first epoch is often not their order at the end: a falling
learning rate, dropout, smoothed labels and weight decay raise the error at first. They lower it at
the end, because they keep the network from learning the wrong labels, which it learns last. Because
the order changes, the task is hard for early stopping. A trial trains for about 0.2 s. Create a
study of this task by `create_study(NAME, train, space=space(), metric="error", mode="min")`. The
example needs scikit-learn: ``pip install 'studydb[examples]'``.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import studydb

EPOCHS = 27
CHECKPOINT_EVERY = 9
BRIGHTEST = 16  # the largest value of a pixel
N_PIXELS, N_DIGITS = 64, 10
SHARE_OF_WRONG_LABELS = 0.15

Array = NDArray[Any]


def space() -> dict[str, Any]:
    """Return the task's search space; its names are those that `train` reads from the config."""
    return {
        "lr": studydb.loguniform(1e-3, 1.0),
        "schedule": studydb.choice(["constant", "cosine", "step", "warmup"]),
        "momentum": studydb.uniform(0.0, 0.95),
        "width": studydb.lograndint(16, 256),
        "batch_size": studydb.lograndint(16, 128),
        "decay": studydb.loguniform(1e-6, 3e-2),
        "smoothing": studydb.uniform(0.0, 0.3),
        "dropout": studydb.uniform(0.0, 0.6),
    }


def train(config: dict[str, Any], trial: Any) -> None:
    """
    Train for 27 epochs; after each epoch, report the share of unseen digits that are misread.

    Args:
        config: `lr` (the highest learning rate), `schedule` ("constant", "cosine", "step" or
            "warmup"), `momentum`, `width` (hidden units), `batch_size`, `decay` (of the weights),
            `smoothing` (the share of a label that is spread over all digits) and `dropout` (the
            share of hidden units that are left out).
        trial: The running trial; training continues from its checkpoint, if there is one.
    """
    weights, velocity, epoch = _untrained(config["width"]), None, 0
    if trial.checkpoint is not None:
        saved = trial.checkpoint.to_dict()
        weights, velocity, epoch = saved["weights"], saved["velocity"], trial.checkpoint.step
    if velocity is None:
        velocity = [np.zeros_like(each) for each in weights]

    data = load()
    while epoch < EPOCHS:
        with np.errstate(all="ignore"):  # at a high rate, weights overflow; the error is then 0.9
            _train_epoch(weights, velocity, data, config, epoch=epoch)
            error = float(np.mean(_read(weights, data.unseen_images) != data.unseen_digits))
        epoch += 1
        keep = {"weights": weights, "velocity": velocity} if epoch % CHECKPOINT_EVERY == 0 else None
        trial.report({"error": error}, checkpoint=keep)


class Data(NamedTuple):
    """
    The task's images and digits, as arrays of one row per image.

    Attributes:
        digits: The labels of the training half, of which about 15 % are wrong.
        unseen_digits: The labels of the unseen half; all are right.
    """

    images: Array
    digits: Array
    unseen_images: Array
    unseen_digits: Array


@cache
def load() -> Data:
    """Split the images into a training half, with about 15 % wrong labels, and an unseen half."""
    images, digits = load_digits(return_X_y=True)
    seen, unseen, labels, unseen_labels = train_test_split(
        images / BRIGHTEST, digits, test_size=0.5, random_state=0, stratify=digits
    )
    rng = np.random.default_rng(0)
    is_wrong = rng.random(len(labels)) < SHARE_OF_WRONG_LABELS
    moved = (labels + rng.integers(1, N_DIGITS, len(labels))) % N_DIGITS
    return Data(seen, np.where(is_wrong, moved, labels), unseen, unseen_labels)


def rate(config: dict[str, Any], progress: float) -> float:
    """Return the learning rate of a schedule when the share `progress` of the training is done."""
    highest = float(config["lr"])
    match config["schedule"]:
        case "cosine":
            return highest * (1 + math.cos(math.pi * progress)) / 2
        case "step":
            return highest * 0.1 ** int(3 * progress)
        case "warmup":
            return highest * min(1.0, 3 * progress)
        case _:
            return highest


def _untrained(width: int) -> list[Array]:
    """Make the weights and biases of both layers; they are the same in all trials of a width."""
    rng = np.random.default_rng(1)
    return [
        rng.normal(0, math.sqrt(2 / N_PIXELS), (N_PIXELS, width)),
        np.zeros(width),
        rng.normal(0, math.sqrt(2 / width), (width, N_DIGITS)),
        np.zeros(N_DIGITS),
    ]


def _train_epoch(
    weights: list[Array], velocity: list[Array], data: Data, config: dict[str, Any], *, epoch: int
) -> None:
    """Change weights and velocity by an epoch of stochastic gradient descent with momentum."""
    rng = np.random.default_rng([1, epoch])  # so that a restored trial draws the same numbers
    smoothing, batch_size = config["smoothing"], config["batch_size"]
    targets = np.eye(N_DIGITS)[data.digits] * (1 - smoothing) + smoothing / N_DIGITS
    order = rng.permutation(len(targets))
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        now = rate(config, (epoch + first / len(order)) / EPOCHS)
        slopes = _slopes(weights, data.images[batch], targets[batch], config, rng)
        for weight, speed, slope in zip(weights, velocity, slopes, strict=True):
            speed[...] = config["momentum"] * speed - now * slope
            weight[...] += speed


def _slopes(
    weights: list[Array],
    images: Array,
    targets: Array,
    config: dict[str, Any],
    rng: np.random.Generator,
) -> list[Array]:
    """Return the gradient of the mean cross entropy, with dropout and the decay of the weights."""
    first, first_bias, last, last_bias = weights
    hidden = np.maximum(images @ first + first_bias, 0)
    kept = (rng.random(hidden.shape) >= config["dropout"]) / (1 - config["dropout"])
    hidden = hidden * kept
    scores = hidden @ last + last_bias
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    score_slopes = (chances - targets) / len(images)
    hidden_slopes = (score_slopes @ last.T) * (hidden > 0) * kept
    decay = config["decay"]
    return [
        images.T @ hidden_slopes + decay * first,
        hidden_slopes.sum(axis=0),
        hidden.T @ score_slopes + decay * last,
        score_slopes.sum(axis=0),
    ]


def _read(weights: list[Array], images: Array) -> Array:
    """Return the digit that the network sees in each image."""
    first, first_bias, last, last_bias = weights
    scores: Array = np.maximum(images @ first + first_bias, 0) @ last + last_bias
    seen: Array = scores.argmax(axis=1)
    return seen
