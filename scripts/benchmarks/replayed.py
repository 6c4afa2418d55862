"""A trainable that replays recorded learning curves, for `scripts/bench schedulers --kills`."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINE = "{number:06} {step:06}\n"
"""A line of the log of trained epochs."""


def train(config: Mapping[str, Any], trial: Any) -> None:
    """Train the epochs after the checkpoint's step; log each, then report it with a checkpoint."""
    errors = json.loads(Path(config["curves"]).read_text(encoding="utf-8"))[trial.number]
    for step in range(trial.start_step + 1, len(errors) + 1):
        time.sleep(config["epoch_s"])
        with Path(config["log"]).open("a", encoding="utf-8") as log:
            log.write(LINE.format(number=trial.number, step=step))
        trial.report({"error": errors[step - 1]}, checkpoint={"step": step})
