"""
A small network that learns to read handwritten digits; a trial trains for at most half a second.

Create a study with ``--trainable studydb.examples.digits:train --metric error --mode min`` and the
parameters that `train` names. The example needs scikit-learn: ``pip install 'studydb[examples]'``.
"""

from functools import cache
from typing import Any

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

EPOCHS = 27
CHECKPOINT_EVERY = 3
BRIGHTEST = 16  # the largest value of a pixel


def train(config: dict[str, Any], trial: Any) -> None:
    """
    Train for 27 epochs; after each epoch, report the share of unseen digits that are misread.

    Args:
        config: `lr` (1e-4 to 1), `h` (hidden units, 4 to 256), `alpha` (weight decay, 1e-6 to 1),
            `bs` (batch size, 8 to 256) and `mom` (momentum, 0 to 0.99).
        trial: The running trial; training continues from its checkpoint, if there is one.
    """
    images, unseen_images, digits, unseen_digits = load()
    network, epoch = make_network(config), 0
    if trial.checkpoint is not None:
        network, epoch = trial.checkpoint.to_dict()["network"], trial.checkpoint.step

    while epoch < EPOCHS:
        network.partial_fit(images, digits, classes=range(10))
        epoch += 1
        error = 1 - network.score(unseen_images, unseen_digits)
        keep = {"network": network} if epoch % CHECKPOINT_EVERY == 0 else None
        trial.report({"error": error}, checkpoint=keep)


def make_network(config: dict[str, Any]) -> MLPClassifier:
    """Make an untrained network; all trials with the same `h` start from the same weights."""
    return MLPClassifier(
        hidden_layer_sizes=(config["h"],),
        solver="sgd",
        learning_rate_init=config["lr"],
        alpha=config["alpha"],
        batch_size=config["bs"],
        momentum=config["mom"],
        random_state=0,
    )


@cache
def load() -> Any:
    """Split the images, and the digits that they show, into a training half and an unseen half."""
    images, digits = load_digits(return_X_y=True)
    return train_test_split(
        images / BRIGHTEST, digits, test_size=0.5, random_state=0, stratify=digits
    )
