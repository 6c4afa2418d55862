"""The process that forks the tests' workers, and its messages about workers that have ended."""

import os
from types import SimpleNamespace

import pytest
from fleet.preloaded import PreloadedWorkers


@pytest.fixture
def messages(monkeypatch):
    """Give `PreloadedWorkers` a pipe in place of its process; return the pipe's writing end."""
    reading, writing = os.pipe()
    with open(reading) as stdout, open(writing, "w") as process, open(os.devnull, "w") as stdin:  # noqa: PTH123
        pipes = SimpleNamespace(stdin=stdin, stdout=stdout)
        monkeypatch.setattr("fleet.preloaded.subprocess.Popen", lambda *_, **__: pipes)
        yield process


def test_worker_with_the_pid_of_an_ended_worker_has_not_ended(messages, tmp_path):
    workers = PreloadedWorkers()

    def start():
        messages.write('{"pid": 7}\n')
        messages.flush()
        return workers.start([], cwd=tmp_path, environment={}, log=tmp_path / "log", constants={})

    first = start()
    messages.write('{"exited": 7, "code": 3}\n')
    messages.flush()
    assert first.poll() == 3

    second = start()

    assert (first.poll(), second.poll()) == (3, None)
