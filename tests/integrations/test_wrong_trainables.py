"""
A trainable that cannot run is refused when the study is created.

The error says what is wrong, and in most cases how to mend it.
"""

import pytest

import studydb
from studydb.domain.errors import TrainableError

CREATE = ("create", "wrong", "--metric", "error", "--mode", "min", "--num-trials", "1")

PARAM = ("--param", "lr=uniform(0, 1)")

WRONG = {
    "program that PATH lacks": (
        ("--", "no-such-program"),
        ("no program 'no-such-program' on PATH", "Install it, or write its path"),
    ),
    "program of this directory, named without ./": (
        ("--", "train.sh"),
        ("no program 'train.sh' on PATH", "Did you mean ./train.sh?"),
    ),
    "path of a missing program": (
        ("--", "./missing.sh"),
        ("no program './missing.sh' in ", "Correct the path, or work in the directory"),
    ),
    "program that may not be executed": (
        ("--", "./plain.txt"),
        ("plain.txt may not be executed", "Allow it (chmod +x ./plain.txt), or name its interpr"),
    ),
    "program with Windows line ends": (
        ("--", "./crlf.sh"),
        (
            "has Windows line ends, so its first line names the interpreter '/bin/sh\\r'",
            "Convert the line ends",
        ),
    ),
    "program that env starts, with Windows line ends": (
        ("--", "./crlf.py"),
        ("has Windows line ends", "'/usr/bin/env python3\\r'"),
    ),
    "unknown name in braces": (
        (*PARAM, "--", "./train.sh", "{lrr}"),
        ("names {lrr}, and the study has no such parameter", "Did you mean 'lr'?"),
    ),
    "parameter that does not reach the command": (
        (*PARAM, "--param", "width=choice(1, 2)", "--", "./train.sh", "{lr}"),
        ("names some parameters, but not width", "Name all of them, or give {args} or {config}"),
    ),
    "parameter named args": (
        ("--param", "args=uniform(0, 1)", "--", "./train.sh", "{args}"),
        (
            "{args} is a placeholder of studydb, but the study also has",
            "Give the parameter another name",
        ),
    ),
    "parameter named config": (
        ("--param", "config=uniform(0, 1)", "--", "./train.sh", "{config}"),
        (
            "{config} is a placeholder of studydb, but the study also has",
            "Give the parameter another name",
        ),
    ),
}


@pytest.fixture
def code(here):
    """A directory: a program, a file that is not executable, two scripts with Windows line ends."""
    (here / "train.sh").write_text("#!/bin/sh\n")
    (here / "train.sh").chmod(0o755)
    (here / "plain.txt").write_text("")
    for name, line in (("crlf.sh", b"#!/bin/sh\r\n"), ("crlf.py", b"#!/usr/bin/env python3\r\n")):
        (here / name).write_bytes(line)
        (here / name).chmod(0o755)
    return here


@pytest.mark.parametrize("case", WRONG)
def test_study_of_a_trainable_that_cannot_run_is_not_created(bare_console, code, case):
    options, words = WRONG[case]
    before = sorted(code.iterdir())

    ran = bare_console(*CREATE, *options, code=1 if "program" in case else 2)

    assert all(word in ran.error for word in words), ran.error
    assert "Traceback" not in ran.err
    assert sorted(code.iterdir()) == before


class Stepless(studydb.Trainable):
    def setup(self, config):
        pass


class WithoutConfig(studydb.Trainable):
    def setup(self): ...
    def step(self): ...


class NeedsData(studydb.Trainable):
    def setup(self, config, data): ...
    def step(self): ...


class NoTrainable:
    pass


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Stepless, "The class Stepless has no method step; write step\\(self\\) -> metrics"),
        (
            WithoutConfig,
            "WithoutConfig.setup cannot be called with the arguments that it would get: too many",
        ),
        (NeedsData, "missing a required argument: 'data'. .* or bind an object to it"),
        (NoTrainable, "does not inherit studydb.Trainable; inherit it, or give a function"),
    ],
)
def test_study_of_a_class_that_cannot_run_is_not_created(code, given, words):
    before = sorted(code.iterdir())

    with pytest.raises(TrainableError, match=words):
        studydb.create_study(
            "wrong", given, metric="error", mode="min", storage="sqlite:///studydb.db"
        )

    assert sorted(code.iterdir()) == before
