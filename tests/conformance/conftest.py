"""Fixtures of the conformance suite."""

import pytest

from studydb import schedulers


@pytest.fixture
def registered(monkeypatch):
    """Return a function that lets studies use a scheduler that is not in `BY_NAME`."""

    def register(scheduler):
        monkeypatch.setitem(schedulers.BY_NAME, scheduler.kind, type(scheduler))
        return scheduler

    return register
