"""`ignores_config` is true only if the bytecode shows that a function never reads its config."""

# ruff: noqa: ARG002, FBT002, RUF015  functions as users write them

import functools

import pytest

from studydb.trainables import ignores_config


def never(config):
    return 1.0


def overwritten(config):
    config = {"lr": 1}
    return config["lr"]


def generator(config):
    yield 1.0


class Ignoring:
    def __call__(self, config):
        return 1.0

    def method(self, config):
        return 1.0


@pytest.mark.parametrize(
    "function",
    [never, lambda _=None: 1.0, overwritten, generator, Ignoring(), Ignoring().method],
)
def test_function_that_never_reads_its_first_parameter_ignores_its_config(function):
    assert ignores_config(function)


def item(config):
    return config["lr"]


def perhaps_overwritten(config, smoke=False):
    if smoke:
        config = {"lr": 1}
    return config["lr"]


def matched(config):
    match config:
        case {"lr": lr}:
            return lr


def read_by_a_handler(config):
    try:
        config = open("config.json").read()  # noqa: PTH123, SIM115
    except OSError:
        return config["lr"]
    return config


class Reading:
    def __call__(self, config):
        return config["lr"]

    def method(self, config):
        return config["lr"]


@pytest.mark.parametrize(
    "function",
    [
        lambda config: dict(**config),
        lambda config: [item(config)],
        lambda config: [lambda: config["lr"] for _ in range(3)][0](),
        lambda config: [config["lr"] for _ in range(3)][0],
        lambda config: locals()["config"]["lr"],
        lambda config, other: (other, config),
        lambda *arguments: [item(*arguments)],
        *(item, perhaps_overwritten, matched, read_by_a_handler),
        *(Reading(), Reading().method, functools.partial(item), len),
    ],
)
def test_function_that_may_read_its_first_parameter_does_not_ignore_its_config(function):
    assert not ignores_config(function)


def test_wrapper_that_reads_its_config_does_not_ignore_it():
    kept = {}

    @functools.wraps(never)
    def wrapper(config):
        kept.update(config)
        return never(config)

    assert not ignores_config(wrapper)
