"""A trainable that runs poisons: functions that each do one thing that must not harm a worker."""

import ctypes
import os
import sys
import time

import studydb
from studydb.child import running_trial


def nested(depth, kind):
    value = 0.5
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


class Mute(Exception):
    def __str__(self):
        raise TypeError("no text")


def largest_double_twice(trial):
    for _ in range(2):
        trial.report({"loss": sys.float_info.max})


def nested_600_deep(trial):
    sys.setrecursionlimit(10_000)
    trial.report({"loss": 0.5, "deep": nested(600, dict)})


def list_900_deep(trial):
    sys.setrecursionlimit(10_000)
    trial.report({"loss": 0.5, "deep": nested(900, list)})


def integer_of_400_digits(trial):
    trial.report({"loss": 0.5, "n": 10**400})


def nul_in_error(trial):
    raise type("Odd\0Error", (ValueError,), {})("a\0b")


def surrogate_in_error(trial):
    raise type("Odd\ud800Error", (ValueError,), {})("\ud800")


def step_of_2_to_70(trial):
    trial.report({"loss": 0.5, "training_iteration": 2**70}, checkpoint={"a": 1})


def error_of_100_mb(trial):
    raise ValueError("x" * 100_000_000)


def mute_error(trial):
    raise Mute


def segfault(trial):
    trial.report({"loss": 0.5})
    ctypes.string_at(0)


def garbage_on_its_pipe(trial):
    trial.report({"loss": 0.5})
    pipe = running_trial._current._supervisor._channel
    pipe._socket.sendall(b"\0\0\0\x04\0\0\0\0" + b"\xc1\xff\xff\xff" * 1000)
    pipe.close()
    time.sleep(60)


def exits_with_its_output_closed(trial):
    os.close(1)
    os.close(2)
    sys.exit("\0")


def names_of_a_megabyte(trial):
    trial.report({"loss": 0.5, **{f"{place}{'x' * 1_000_000}": 0.5 for place in range(3)}})


POISONS = {
    function.__name__: function
    for function in (
        largest_double_twice,
        nested_600_deep,
        list_900_deep,
        integer_of_400_digits,
        nul_in_error,
        surrogate_in_error,
        step_of_2_to_70,
        error_of_100_mb,
        mute_error,
        segfault,
        garbage_on_its_pipe,
        exits_with_its_output_closed,
        names_of_a_megabyte,
    )
}


def train(config, trial):
    """Run the poison that the config names for this trial, if any, and report."""
    poison = config["poisons"].get(str(trial.number))
    if poison is not None:
        POISONS[poison](trial)
    studydb.report({"loss": 0.5, "training_iteration": 9})
