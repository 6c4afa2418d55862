"""
Scripts for W&B sweeps and for Syne Tune, and scripts that only print logs, run unchanged.

The scripts resemble public examples, but import no package of these tools: where an example calls
such a package, the script does what the package does.
"""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness.turns import sqlite_alone

import studydb
from studydb.domain.life.states import Mode

storage_url = sqlite_alone


LOGGING_SCRIPT = """
import argparse, logging, sys

def main():
    parser = argparse.ArgumentParser(description="Train a small network")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=32)
    parser.add_argument("--config", default=None)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s")
    loss = 1.0
    for epoch in range(1, args.epochs + 1):
        loss *= 1 - args.lr
        logging.info("Epoch %d/%d - loss: %.4f - lr: %g", epoch, args.epochs, loss, args.lr)
    if args.config:
        print("config", args.config)

if __name__ == "__main__":
    main()
"""

EPOCH = r"Epoch (?P<step>\d+)/\d+ - loss: (?P<val_loss>\S+)"

SWEEP = """
program: train.py
method: grid
metric:
  name: val_loss
  goal: minimize
parameters:
  lr:
    values: [0.1, 0.5]
  batch_size:
    value: 64
  config:
    value: small.yaml
  epochs:
    value: 3
command:
  - ${env}
  - ${interpreter}
  - ${program}
  - ${args}
"""


def test_sweep_file_runs_its_script_and_a_pattern_reads_the_log(stage, monkeypatch):
    """`${env} ${interpreter}` starts the first `python` on PATH, as in W&B."""
    here = stage.folder / "here"
    here.mkdir()
    (here / "train.py").write_text(LOGGING_SCRIPT)
    (here / "sweep.yaml").write_text(SWEEP)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    stage.command("create", "swept", "--from", "sweep.yaml", "--report-regex", EPOCH)
    stage.command("worker", "--study", "swept")

    with closing(studydb.load_study("swept", storage=stage.storage)) as study:
        assert study.record.objective.mode is Mode.MIN
        best = study.best_trial
        assert (study.counts.terminated, best.params, best.summary.n_results) == (2, {"lr": 0.5}, 3)
        assert best.value == pytest.approx(0.125)
        assert "config small.yaml" in stage.command("logs", "swept", str(best.number))


def test_pattern_reads_the_metrics_that_a_script_logs(stage):
    (stage.folder / "train.py").write_text(LOGGING_SCRIPT)
    command = studydb.Command(
        [sys.executable, "train.py", "--lr", "{lr}", "--epochs", "4"], report_regex=EPOCH
    )
    stage.create(command, workdir=stage.folder, metric="val_loss", space={"lr": 0.5})

    assert stage.run() == 0, stage.attempts()

    assert stage.steps() == [1, 2, 3, 4]
    assert stage.trial().last_value == pytest.approx(0.0625)


SYNE_TUNE_SCRIPT = """
import argparse, json, os, time
from pathlib import Path

class Reporter:
    # Does what Syne Tune's Reporter does: each call prints one line to stdout.
    def __init__(self):
        self.iter, self.start = 0, time.perf_counter()

    def __call__(self, **metrics):
        metrics["st_worker_timestamp"] = time.time()
        metrics["st_worker_time"] = time.perf_counter() - self.start
        metrics["st_worker_iter"] = self.iter
        self.iter += 1
        print(f"[tune-metric]: {json.dumps(metrics)}", flush=True)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=float)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data", type=str)
    parser.add_argument("--st_checkpoint_dir", type=str, default=None)
    args, _ = parser.parse_known_args()
    report = Reporter()
    first = 1
    if args.st_checkpoint_dir is not None:
        os.makedirs(args.st_checkpoint_dir, exist_ok=True)
        state = Path(args.st_checkpoint_dir) / "state.json"
        if state.exists():
            first = json.loads(state.read_text())["epoch"] + 1
    for epoch in range(first, args.epochs + 1):
        while not Path(f"{args.data}-{epoch}").exists():  # the data of an epoch arrive late
            time.sleep(0.01)
        if args.st_checkpoint_dir is not None:
            state.write_text(json.dumps({"epoch": epoch}))
        report(epoch=epoch, mean_loss=args.width / epoch)
"""


@pytest.mark.nightly
def test_script_for_syne_tune_goes_on_from_its_checkpoint_directory_after_sigkill(stage):
    (stage.folder / "train.py").write_text(SYNE_TUNE_SCRIPT)
    items = [sys.executable, "train.py", "{args}", "--st_checkpoint_dir", "{checkpoint_dir}"]
    stage.create(
        studydb.Command(items),
        workdir=stage.folder,
        metric="mean_loss",
        space={"width": 3.0, "epochs": 4, "data": str(stage.folder / "gate")},
    )
    first = stage.start()
    for step in (1, 2):
        stage.open_gate(step)
        stage.await_trial(lambda row, step=step: row.checkpoint_step == step)
    first.end()
    for step in (3, 4):
        stage.open_gate(step)

    assert stage.run() == 0, stage.attempts()

    assert [(row.reason, row.start_step) for row in stage.attempts()] == [
        ("LOST", 1),
        ("COMPLETED", 3),
    ]
    assert stage.steps() == [1, 2, 3, 4]
    rows = stage.study.results_dataframe()
    assert list(rows["epoch"]) == [1, 2, 3, 4]
    assert list(rows["mean_loss"]) == [3.0, 1.5, 1.0, 0.75]
    assert not [name for name in rows.columns if name.startswith("st_")]
