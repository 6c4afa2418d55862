"""
Trainables, and custom rules: some rules decide, the others fail or are refused.

Only the methods that use numpy or psutil import them, because each decider and each template
imports this file.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import studydb


@dataclass(frozen=True)
class TooSlow(studydb.StopRule):
    """Stop a trial that has not improved for `limit` steps; write each call to the file `asked`."""

    limit: int = 3
    folder: str = ""
    reads = 10

    def should_stop(self, trial):
        values = [each[trial.metric] for each in trial.results]
        steps = [each["training_iteration"] for each in trial.results]
        if self.folder:
            with (Path(self.folder) / "asked").open("a") as file:
                file.write(f"{os.getpid()} {trial.number} {steps}\n")
        if len(values) > self.limit and min(values[-self.limit :]) >= min(values[: -self.limit]):
            return f"no improvement for {self.limit} steps at {trial.config['x']}"
        return False


@dataclass(frozen=True)
class Broken(studydb.StopRule):
    """
    From `step` on, call the method that `how` names.

    If the gate "corrected" is open, stop the trial instead.
    """

    how: str
    folder: str = ""
    step: int = 2

    def should_stop(self, trial):
        if trial.results[-1]["training_iteration"] < self.step:
            return False
        if self.folder and (Path(self.folder) / "gate-corrected").exists():
            return "corrected"
        return getattr(self, self.how)()

    def raises(self):
        raise KeyError("accuracy")

    def exits(self):
        raise SystemExit(0)

    def returns_none(self):
        return None

    def returns_a_list(self):
        return [True]

    def returns_empty_text(self):
        return ""

    def hangs(self):
        time.sleep(60.0)

    def spins(self):
        while True:
            pass

    def kills_itself(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stops_itself(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def leaves(self):
        os._exit(0)

    def writes_to_each_descriptor(self):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\xff" * 1000)
            except OSError:
                continue
        return True


@dataclass(frozen=True)
class KillsItsWorker(studydb.StopRule):
    """Kill the worker when first asked about step 3; when asked again, stop the trial."""

    folder: str

    def should_stop(self, trial):
        steps = [each["training_iteration"] for each in trial.results]
        if steps[-1] < 3:
            return False
        killed = Path(self.folder) / "killed"
        if killed.exists():
            return f"asked again with {steps}"
        import psutil  # noqa: PLC0415  slow to import

        killed.touch()
        psutil.Process().parent().parent().kill()  # the parent is the fork server
        return True


@dataclass(frozen=True)
class Plain(studydb.StopRule):
    """Print 100 kB, and answer with a bool of numpy."""

    def should_stop(self, trial):
        import numpy as np  # noqa: PLC0415  slow to import

        print("x" * 100_000)  # noqa: T201
        return np.float64(trial.results[-1]["loss"]) < 0.3


@dataclass(frozen=True)
class Nosy(studydb.StopRule):
    """
    Stop the trial at its first result.

    The reason names the variables of the environment that may hold credentials, counts this
    process's open sockets, and says whether the process leads its process group.
    """

    def should_stop(self, _trial):
        secrets = [name for name in os.environ if name.startswith(("STUDYDB_S", "PG"))]
        files = {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}
        sockets = [file for file in files if "socket:" in file]
        own_group = os.getpgid(0) == os.getpid()
        return f"secrets {secrets}, sockets {len(sockets)}, own group {own_group}"


class WithoutBase:
    """A rule that does not inherit `StopRule`; studies name it by its import path."""

    def __init__(self, step):
        self._step = step

    def should_stop(self, trial):
        return trial.results[-1]["training_iteration"] >= self._step


class NoRule:
    """A class without `should_stop`."""


class Greedy(WithoutBase):
    reads = 10**6


def waits_for_gates(config, trial):
    """Report values that improve until step 4; after each step wait for the step's gate."""
    step = trial.checkpoint.to_dict()["step"] if trial.checkpoint else 0
    while step < 12:
        step += 1
        trial.report({"loss": max(0.25, 1 / step)}, checkpoint={"step": step})
        while not any((Path(config["folder"]) / f"gate-{g}").exists() for g in (step, "all")):
            time.sleep(0.02)


def saves_once(config, trial):
    """Save a checkpoint at step 3 only; from step 4 on, wait for the gate "all"."""
    for step in range(trial.start_step + 1, 13):
        checkpoint = {"step": step} if step == 3 else None
        trial.report({"loss": max(0.25, 1 / step)}, checkpoint=checkpoint)
        while step >= 4 and not (Path(config["folder"]) / "gate-all").exists():
            time.sleep(0.02)


def done_at_once(_config, trial):
    """Report one result, with `done=True`."""
    trial.report({"loss": 0.5, "done": True})


def returns(_config):
    """Return a value instead of reporting it."""
    return 0.5


def counts(config, trial):
    """Append each step that is trained to the file `counted`."""
    for step in range(1, 6):
        with (Path(config["folder"]) / "counted").open("a") as file:
            file.write(str(step))
        trial.report({"loss": 0.5})
