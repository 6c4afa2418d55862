"""`ignores_config` reads a trainable's bytecode; if in doubt, it is False."""

# ruff: noqa: ARG002, FBT002, RUF015  functions as users write them

import functools

import pytest

from studydb.trainables import ignores_config


def never(config):
    return 1.0


def default(config=None):
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
    [never, default, overwritten, generator, lambda _: 1.0, Ignoring(), Ignoring().method],
)
def test_function_that_never_reads_its_first_parameter_ignores_its_config(function):
    assert ignores_config(function)


def item(config):
    return config["lr"]


def spread(config):
    return dict(**config)


def handed_on(config):
    return item(config)


def perhaps_overwritten(config, smoke=False):
    if smoke:
        config = {"lr": 1}
    return config["lr"]


def captured(config):
    return [lambda: config["lr"] for _ in range(3)][0]()


def listed(config):
    return [config["lr"] for _ in range(3)][0]


def by_name(config):
    return locals()["config"]["lr"]


def matched(config):
    match config:
        case {"lr": lr}:
            return lr


def any_arguments(*args, **kwargs):
    return item(*args)


def in_both(config, other):
    return (other, config)


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
        *(item, spread, handed_on, perhaps_overwritten, captured, listed, by_name, matched),
        read_by_a_handler,
        *(any_arguments, in_both, Reading(), Reading().method, functools.partial(item), len),
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
