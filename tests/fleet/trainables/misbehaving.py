"""Trainables that each do one thing; most fail, die, report wrongly or misuse their process."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

LONG_S = 3
"""Longer than the lease of the test's worker."""


def named(config, trial):
    """Call the function of this module that the config names."""
    function = globals()[config["function"]]
    return function(*(config, trial)[: function.__code__.co_argcount])


def raises(config):
    raise ValueError("the learning rate is cursed")


def raises_after_reports(config, trial):
    for step in range(1, 1001):
        trial.report({"loss": 1 / step})
    raise ValueError("after 1000 reports")


def raises_after_yields(config):
    yield {"loss": 1.0}
    yield {"loss": 0.5}
    raise ValueError("after 2 yields")


def exits_after_a_report(config, trial):
    trial.report({"loss": 1.0})
    sys.exit("after a report")


def raises_until_corrected(config):
    if not (Path(config["folder"]) / "gate-corrected").exists():
        raise ValueError("a typo")
    return config["x"]


def raises_unless_first(config, trial):
    if trial.number > 0:
        raise ValueError("only the first is good")
    return config["x"]


def raises_on_a_broken_host(config):
    if os.environ.get("BROKEN_HOST"):
        raise RuntimeError("no driver")
    return config["x"]


def returns_nothing(config):
    pass


def returns_number(config):
    return config["x"]


def returns_dict(config):
    return {"loss": config["x"], "accuracy": 0.75}


def returns_text(config):
    return "0.25"


def exits(config):
    sys.exit("bad data")


def exits_hard(config):
    os._exit(3)


def segfaults(config):
    ctypes.string_at(0)


def kills_itself(config):
    os.kill(os.getpid(), 9)


def dies_after_step_2(config, trial):
    for step in (1, 2):
        trial.report({"loss": 1 / step})
    trial.flush()
    os.kill(os.getpid(), 9)


def floods(config):
    """Write 100 MiB of lines, and then a line without a newline."""
    line = b"x" * 1023 + b"\n"
    for _ in range(100):
        os.write(1, line * 1024)
    sys.stdout.write("the last line")
    return config["x"]


def prints_rubbish(config):
    os.write(1, b"\0\xff\xfe caf\xc3\xa9 \0\n")
    os.write(2, b"\xed\xa0\x80\n")
    raise ValueError("a NUL: \0, a lone surrogate: \ud800")


def leaves_processes(config):
    """Start one process in the trial's process group, and one in another session."""
    for detached in (False, True):
        subprocess.Popen(["sleep", "600"], start_new_session=detached)
    return config["x"]


def holds_the_gil(config, trial):
    """Hold the interpreter's lock in trial 0 for longer than the lease."""
    if trial.number == 0:
        ctypes.PyDLL(None).sleep(LONG_S)
    trial.report({"loss": config["x"]})
    trial.flush()
    (Path(config["folder"]) / f"done-{trial.number}").write_text(str(time.monotonic()))


def forgets_the_metric(config, trial):
    trial.report({"loss": 0.5})
    trial.report({"accuracy": 0.5})


def reports_text(config, trial):
    trial.report({"loss": "0.5"})


def reports_object(config, trial):
    trial.report({"loss": 0.5, "model": object()})


def steps_back(config, trial):
    trial.report({"loss": 0.5, "training_iteration": 3})
    trial.report({"loss": 0.4, "training_iteration": 3})


def fails_at_first(config, trial):
    """Succeed only in trial 0, from its second attempt on."""
    if trial.number or trial.attempt == 1:
        raise RuntimeError(f"attempt {trial.attempt} of trial {trial.number}")
    return config["x"]


def needs_two_things(config, trial, model):
    return config["x"]
