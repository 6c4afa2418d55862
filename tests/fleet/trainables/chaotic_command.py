"""
The program that `chaotic.sh` starts in crash tests: it reports the curve of `chaotic_curve`.

If the config's `save_waits` is true, the program records each step with a checkpoint as
acknowledged when the answer to the step's report arrives. It does not record the step if the answer
names an error or a lost lease.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from chaotic_curve import CHECKPOINT_EVERY, Journal, metrics, start_bystander


def main() -> int:
    env = os.environ
    config = json.loads(Path(env["STUDYDB_CONFIG"]).read_text())
    number = int(env["STUDYDB_TRIAL"])
    journal = Journal(config["journal"], number, int(env["STUDYDB_ATTEMPT"]))
    saved = env.get("STUDYDB_CHECKPOINT")
    start = int(Path(saved, "step").read_text()) if saved else 0
    assert start == int(env["STUDYDB_STEP"])
    start_bystander(number)
    client = socket.socket(socket.AF_UNIX)
    client.connect(env["STUDYDB_SOCKET"])
    answers = client.makefile()
    for step in range(start + 1, config["steps"] + 1):
        time.sleep(config["step_s"])
        keeps = step % CHECKPOINT_EVERY == 0
        if keeps:
            Path(env["STUDYDB_SAVE"], "step").write_text(str(step))
        report = {**metrics(config["x"], step), "step": step, "checkpoint": keeps}
        client.sendall(json.dumps(report).encode() + b"\n")
        answer = json.loads(answers.readline())
        if keeps and config["save_waits"] and "error" not in answer and answer.get("why") != "lost":
            journal.acknowledge(step)
        if not answer.get("go"):
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
