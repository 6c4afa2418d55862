"""The example trainables digits and quadratic lower their metric, and resume from a checkpoint."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from studydb.examples import quadratic

GOOD_NETWORK = {"lr": 0.15, "h": 70, "alpha": 3e-4, "bs": 30, "mom": 0.13}


@dataclass
class Checkpoint:
    step: int
    data: bytes

    def to_dict(self) -> dict[str, Any]:
        return pickle.loads(self.data)


@dataclass
class Trial:
    """A trial in memory; `report` keeps metrics, and pickles checkpoints as a real trial does."""

    checkpoint: Checkpoint | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    def report(self, metrics, checkpoint=None):
        self.metrics.append(metrics)
        if checkpoint is not None:
            step = (self.checkpoint.step if self.checkpoint else 0) + len(self.metrics)
            self.checkpoints.append(Checkpoint(step, pickle.dumps(checkpoint)))


@pytest.fixture(scope="session")
def digits():
    from studydb.examples import digits  # noqa: PLC0415  it imports scikit-learn

    return digits


def check_resumed(train, config, whole):
    """Check that a trial from the middle checkpoint of `whole` reports the same later metrics."""
    middle = whole.checkpoints[len(whole.checkpoints) // 2]

    resumed = Trial(checkpoint=middle)
    train(config, resumed)

    assert resumed.metrics == whole.metrics[middle.step :]


@pytest.mark.nightly
def test_digits_reaches_an_error_below_8_percent_in_27_epochs_and_resumes_from_a_checkpoint(digits):
    trial = Trial()

    digits.train(GOOD_NETWORK, trial)

    assert len(trial.metrics) == 27
    assert trial.metrics[-1]["error"] < 0.08 < trial.metrics[0]["error"]
    check_resumed(digits.train, GOOD_NETWORK, trial)


def test_quadratic_resumed_from_a_checkpoint_reports_the_metrics_of_the_uninterrupted_trial():
    trial, config = Trial(), {"x": 7.0, "rate": 0.1}

    quadratic.train(config, trial)

    check_resumed(quadratic.train, config, trial)


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "mom"), [(1e-4, 0.0), (1.0, 0.99)])
def test_digits_trains_with_the_extreme_values_of_its_space(digits, lr, mom, monkeypatch):
    monkeypatch.setattr(digits, "EPOCHS", 9)
    trial = Trial()

    digits.train({"lr": lr, "h": 256, "alpha": 1.0, "bs": 256, "mom": mom}, trial)

    assert 0 <= trial.metrics[-1]["error"] <= 1


def test_quadratic_reports_a_lower_loss_at_every_step():
    trial = Trial()

    quadratic.train({"x": -4.0, "rate": 0.2}, trial)

    losses = [metrics["loss"] for metrics in trial.metrics]
    assert len(losses) == quadratic.STEPS
    assert losses == sorted(losses, reverse=True)
