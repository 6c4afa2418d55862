"""The decider asks user code for decisions. It is replaced after a failure or a change of code."""

import errno
import os
import signal
import time
from unittest.mock import Mock

import pytest
from fleet.workers import TRAINABLES, eventually
from harness.arrange import run_together
from msgspec import msgpack

from studydb.child.channel import Frame, FrameError
from studydb.child.decider import read_from_decider
from studydb.child.job import TrainableImport
from studydb.domain.deciding import DECISION_S, DecisionFailed, NotAsked
from studydb.domain.life.custom_rule import TrialView
from studydb.domain.trainable import TrainableRole
from studydb.processes import start_of
from studydb.trainables.custom_rules import METHOD, view_arguments
from studydb.trainables.describing import describe_import
from studydb.worker import decider_client
from studydb.worker.decider_client import Decider
from studydb.worker.fork_server_client import ForkServer


@pytest.fixture
def decider(fork_server, pump, tmp_path):
    """A function that makes a `Decider`; each rule is (name of a class in `stopping`, options)."""
    made = []

    def make(*rules, **options):
        imports = [imported(name, given, TRAINABLES) for name, given in rules]
        made.append(
            Decider(fork_server, pump, objects=imports, directory=tmp_path / "out", **options)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def imported(name, options, folder):
    code = describe_import(f"stopping:{name}", options, workdir=folder, role=TrainableRole.RULE)
    return TrainableImport("uuid", code, signed=True, workdirs=(str(folder),))


def arguments(*values):
    results = [{"loss": value, "training_iteration": n} for n, value in enumerate(values, 1)]
    return view_arguments(TrialView(0, {"x": 2**70}, "loss", "min", results))


def ask(decider, *values, position=0, answer=bool | str):
    return decider.decide(position, METHOD, arguments(*values), answer)


def test_question_is_answered_by_the_object_at_the_given_position(decider, tmp_path):
    made = decider(("WithoutBase", {"step": 2}), ("TooSlow", {"limit": 1, "folder": str(tmp_path)}))

    assert made.reads() == (20, 10)
    assert ask(made, 0.5) is False
    assert ask(made, 0.5, 0.4) is True
    assert ask(made, 0.5, 0.6, position=1) == f"no improvement for 1 steps at {2**70}"
    assert ask(made, 0.5, 0.4, position=1) is False


def test_answer_of_an_unexpected_type_is_refused(decider):
    made = decider(("WithoutBase", {"step": 1}))

    with pytest.raises(DecisionFailed, match="its answer cannot be read: Expected `str`"):
        ask(made, 0.5, answer=str)


@pytest.mark.slow
def test_question_that_is_not_answered_within_a_second_is_asked_once_more_and_then_fails(decider):
    made = decider(("Broken", {"how": "hangs", "step": 1}))
    made.reads()
    began_s = time.monotonic()

    with pytest.raises(DecisionFailed, match="it took more than 1 s"):
        ask(made, 0.5)

    assert 2 * DECISION_S <= time.monotonic() - began_s < 2 * DECISION_S + 10


def test_process_that_was_suspended_is_replaced_without_a_failure(decider, tmp_path):
    made = decider(("TooSlow", {"folder": str(tmp_path)}))
    ask(made, 0.5)
    pid = int((tmp_path / "asked").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)

    assert ask(made, 0.5) is False

    assert len({line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()}) == 2


def test_interrupted_question_leaves_no_answer_for_the_next_question(decider, monkeypatch):
    made = decider(("WithoutBase", {"step": 2}))
    made.reads()
    receive = made._receive

    def interrupted(process, timeout_s):
        monkeypatch.setattr(made, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(made, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(made, 0.5, 0.4)

    assert ask(made, 0.5) is False


def test_decider_imports_nothing_for_a_worker_that_is_stopping(decider):
    made = decider(("WithoutBase", {"step": 1}), is_stopping=lambda: True)

    with pytest.raises(NotAsked):
        ask(made, 0.5)


def test_import_is_abandoned_when_the_answer_has_become_useless(decider):
    made = decider(("WithoutBase", {"step": 1}))
    moot = iter([False])  # False until the process is started, True while it imports

    with pytest.raises(NotAsked):
        made.decide(0, METHOD, arguments(0.5), bool, is_moot=lambda: next(moot, True))

    assert ask(made, 0.5) is True


def test_decider_in_use_is_not_awaited_when_the_answer_has_become_useless(decider, monkeypatch):
    made = decider(("WithoutBase", {"step": 1}))
    held_by_another_thread = Mock(acquire=Mock(side_effect=[False]))

    monkeypatch.setattr(made, "close", lambda: None)
    monkeypatch.setattr(made, "_lock", held_by_another_thread)
    with pytest.raises(NotAsked):
        made.decide(0, METHOD, arguments(0.5), bool, is_moot=lambda: True)


def test_no_process_is_started_for_a_worker_whose_fork_server_is_closed(pump, tmp_path):
    """A slot may ask while it ends its trial; the error `DecisionFailed` would pause the study."""
    closed = ForkServer()
    closed.close()
    objects = [imported("WithoutBase", {"step": 1}, TRAINABLES)]
    made = Decider(closed, pump, objects=objects, directory=tmp_path, is_stopping=lambda: True)

    with pytest.raises(NotAsked):
        ask(made, 0.5)


def test_import_that_takes_too_long_fails(decider, monkeypatch):
    monkeypatch.setattr(decider_client, "IMPORT_TIMEOUT_S", 0.0)
    made = decider(("WithoutBase", {"step": 1}))

    with pytest.raises(DecisionFailed, match="its import took more than 0 s"):
        ask(made, 0.5)


def test_output_of_earlier_processes_and_of_other_workers_is_kept(decider, tmp_path):
    made = [decider(("Broken", {"how": how, "step": 1})) for how in ("raises", "returns_none")]

    for each in made:
        with pytest.raises(DecisionFailed):
            ask(each, 0.5)

    printed = (tmp_path / "out" / "stderr").read_text()
    assert "KeyError: 'accuracy'" in printed
    assert "should_stop returned None" in printed


def test_concurrent_questions_get_their_own_answers(decider):
    made = decider(("WithoutBase", {"step": 2}))

    def asking(n):
        return lambda: [ask(made, *[0.5] * (1 + n % 2)) for _ in range(20)]

    assert run_together(map(asking, range(8))) == [[bool(n % 2)] * 20 for n in range(8)]


def test_question_that_is_too_large_fails_and_the_next_question_is_answered(decider, monkeypatch):
    made = decider(("WithoutBase", {"step": 2}))
    made.reads()
    monkeypatch.setattr("studydb.child.channel.MAX_PAYLOAD_BYTES", 1000)

    with pytest.raises(DecisionFailed, match="what it reads is too large"):
        ask(made, *[0.5] * 1000)

    monkeypatch.undo()
    assert ask(made, 0.5) is False


def test_death_of_the_fork_server_costs_no_decision(pump, tmp_path):
    server = ForkServer()
    made = Decider(
        server,
        pump,
        objects=[imported("WithoutBase", {"step": 2}, TRAINABLES)],
        directory=tmp_path / "out",
    )
    ask(made, 0.5)
    os.kill(server.pid, signal.SIGKILL)

    assert ask(made, 0.5, 0.4) is True

    made.close()
    server.close()


def test_decider_is_replaced_if_a_source_file_has_changed_before_a_question(decider, tmp_path):
    source = (TRAINABLES / "stopping.py").read_text()
    path = tmp_path / "stopping.py"
    path.write_text(source)
    made = decider()
    made._objects = (imported("WithoutBase", {"step": 2}, tmp_path),)
    assert ask(made, 0.5) is False
    first = made._process
    path.write_text(source.replace(">= self._step", "< self._step"))

    assert ask(made, 0.5) is True

    assert made._process is not first
    assert ask(made, 0.5) is True


def test_first_question_is_answered_although_a_source_file_has_changed_since_the_import(
    decider, tmp_path
):
    """If the clock is wrong, each new process seems outdated; it must still answer one question."""
    source = (TRAINABLES / "stopping.py").read_text()
    path = tmp_path / "stopping.py"
    path.write_text(source)
    made = decider()
    made._objects = (imported("WithoutBase", {"step": 2}, tmp_path),)
    made.reads()
    first = made._process
    path.write_text(source.replace(">= self._step", "< self._step"))

    assert ask(made, 0.5) is False

    assert made._process is first
    assert ask(made, 0.5) is True


def test_what_user_code_prints_is_kept_on_disk(decider, tmp_path):
    made = decider(("Plain", {}))

    ask(made, 0.5)
    made.close()

    assert (tmp_path / "out" / "stdout").read_text() == "x" * 100_000 + "\n"


def test_process_left_behind_by_a_trial_is_killed_although_a_decider_lives(decider, start):
    """
    The process was forked without exec, so its environment in /proc does not name its trial.

    The fork server kills such a process when the fork server has no children except deciders.
    """
    made = decider(("WithoutBase", {"step": 2}))
    made.reads()

    def leave(config):
        if (pid := os.fork()) == 0:
            os.setsid()
            time.sleep(60)
        return {"loss": 0.5, "pid": pid}

    attempt = start(leave)
    pid = attempt.receive().result.metrics["pid"]
    attempt.finish()

    eventually(lambda: start_of(pid) is None)
    assert ask(made, 0.5, 0.4) is True
    assert made._process.exit is None


def test_error_says_that_this_host_cannot_start_the_process(decider, monkeypatch):
    made = decider(("WithoutBase", {"step": 2}))

    def refused(*_arguments, **_named):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(made._pump, "open", refused)

    with pytest.raises(DecisionFailed, match="this host cannot start its process: Too many open"):
        ask(made, 0.5)

    monkeypatch.undo()
    assert ask(made, 0.5) is False


@pytest.mark.parametrize(
    "header",
    [b"", b"\xff", b"\x91" * 100_000, msgpack.encode({"type": "decided", "id": 1}), b"\xc0"],
)
def test_frame_that_is_no_message_is_refused(header):
    with pytest.raises(FrameError, match="The decider sent a frame that is not a message"):
        read_from_decider(Frame(header))
