"""Functions that save dicts or directories as checkpoints, and one that saves no checkpoint."""

from pathlib import Path


def as_dict(config, trial):
    for step in (1, 2):
        trial.report({"loss": 1 / step}, checkpoint={"weights": [config["x"], step]})


def as_directory(config, trial):
    folder = Path(config["folder"]) / f"saved-{trial.number}"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for step in (1, 2):
        (folder / "deep" / "model.txt").write_text(f"step {step}")
        trial.report({"loss": 1 / step}, checkpoint=folder)


def nothing(config):
    return config["x"]
