"""Warm starts: attempts forked from a template, reasons for fresh starts, how templates end."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.child_messages import metrics_of
from harness.pickled import by_value
from harness.turns import sqlite_alone
from harness.warm_server import WarmServer

from studydb.child.messages import End, Ended
from studydb.processes import children_of, start_of
from studydb.worker import templates
from studydb.worker.fork_server_client import ForkServer

storage_url = sqlite_alone

PLAIN = """
    import os, random
    import numpy
    IMPORTED_BY, DRAWN, STATE = os.getpid(), random.random(), []

    def train(config, trial):
        STATE.append(trial.number)
        return {
            "loss": 1.0, "imported_by": IMPORTED_BY, "own": os.getpid(), "state": len(STATE),
            "drawn": DRAWN, "random": random.random(), "numpy": numpy.random.rand(),
        }
"""

LATE_NUMPY = """
    import random, sys
    DRAWN, STATE = random.random(), []

    def train(config):
        had_numpy = "numpy" in sys.modules
        import numpy
        drawn = {"drawn": DRAWN, "random": random.random(), "numpy": numpy.random.rand()}
        return {"loss": 1.0, "had_numpy": had_numpy, **drawn}
"""


def is_running(pid):
    return start_of(pid) is not None


# attempts forked from a template


def test_module_is_imported_once_for_all_attempts(start, warm, module):
    trainable = module(PLAIN)

    first, second = (metrics_of(start(trainable, server=warm)) for _ in range(2))

    assert first["imported_by"] == second["imported_by"]
    assert len({first["own"], second["own"], first["imported_by"]}) == 3
    assert warm.starts == ["warm", "warm"]
    assert warm.printed == []


def test_function_sent_by_value_is_unpickled_once(start, warm):
    def train(config):
        return {"loss": 1.0, "parent": os.getppid()}

    trainable = by_value(train)
    first, second = (metrics_of(start(trainable, server=warm)) for _ in range(2))

    assert warm.starts == ["warm", "warm"]
    assert first["parent"] == second["parent"]


def test_process_is_forked_from_a_template_while_its_job_is_made(start, warm, module):
    trainable = module(PLAIN)
    template = metrics_of(start(trainable, server=warm))["imported_by"]
    eventually(lambda: not children_of(template))
    warm.on_read = lambda: eventually(lambda: children_of(template))

    assert metrics_of(start(trainable, server=warm))["imported_by"] == template


def test_attempt_does_not_see_changes_that_another_attempt_made_to_the_module(start, warm, module):
    trainable = module(PLAIN)

    seen = [metrics_of(start(trainable, server=warm))["state"] for _ in range(3)]

    assert seen == [1, 1, 1]


@pytest.mark.parametrize("source", [PLAIN, LATE_NUMPY], ids=["at the import", "in the trial"])
def test_random_numbers_of_warm_and_fresh_starts_are_equal(
    start, warm, module, fork_server, source
):
    trainable, study = module(source), "8f0e6d5c-0000-4000-8000-000000000000"
    drawn = [
        {
            name: metrics_of(start(trainable, server=server, seed=seed, study_uuid=study))[name]
            for name in ("drawn", "random", "numpy")
        }
        for seed in (1, 2)
        for server in (fork_server, warm)
    ]

    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
    assert drawn[0]["random"] != drawn[2]["random"]
    assert drawn[0]["numpy"] != drawn[2]["numpy"]


def test_numpy_is_seeded_even_if_the_trial_imports_it_and_not_the_template(
    start, pump, module, tmp_path
):
    trainable = module(LATE_NUMPY)
    with closing(ForkServer()) as server:
        server.start()
        warm = WarmServer(server, pump, tmp_path)
        drawn = [metrics_of(start(trainable, server=warm, seed=seed)) for seed in (1, 1, 2)]
        warm.templates.close()

    assert warm.starts == ["warm"] * 3
    assert [each["had_numpy"] for each in drawn] == [False] * 3
    first, again, other = (each["numpy"] for each in drawn)
    assert first == again != other


def test_warm_attempts_share_no_process_group_no_output_and_no_descriptor(start, warm, module):
    trainable = module(
        """
        import os
        def train(config, trial):
            print("printed by", trial.number)
            paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
            kinds = [os.readlink(p).partition(":")[0] for p in paths if os.path.islink(p)]
            is_leader = os.getpid() == os.getpgrp() == os.getsid(0)
            return {"loss": 1.0, "kinds": kinds, "is_leader": is_leader}
        """
    )

    attempts = [start(trainable, server=warm, number=number) for number in (3, 4)]
    found = [metrics_of(attempt) for attempt in attempts]

    assert [each["kinds"] for each in found] == [["socket"], ["socket"]]
    assert all(each["is_leader"] for each in found)
    assert [attempt.printed for attempt in attempts] == ["printed by 3\n", "printed by 4\n"]


def test_output_of_an_import_is_written_once_and_not_as_the_output_of_an_attempt(
    start, warm, module, tmp_path
):
    trainable = module(
        """
        import sys
        sys.stdout.write("half a line")
        def train(config):
            return 1.0
        """
    )

    attempts = [start(trainable, server=warm) for _ in range(2)]
    for attempt in attempts:
        attempt.finish()
    warm.templates.close()

    assert [attempt.printed for attempt in attempts] == ["", ""]
    assert (tmp_path / "templates" / "stdout").read_text() == "half a line"


def test_segfault_of_an_attempt_does_not_harm_its_template(start, warm, module):
    trainable = module(
        """
        import ctypes, os, time
        def train(config, trial):
            trial.report({"loss": 1.0})
            if config["lr"]:
                ctypes.string_at(0)
            return {"loss": 2.0, "parent": os.getppid()}
        """
    )

    first = start(trainable, server=warm)
    first.finish()
    second = start(trainable, server=warm, config={"lr": 0.0})
    reports = second.finish()

    assert first.child.exit.signal == signal.SIGSEGV
    assert reports[-1] == Ended(End.COMPLETED)
    assert warm.starts == ["warm", "warm"]


# what a template imports, and when attempts start fresh


UNSAFE = {
    "Python thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "1 Python thread",
    ),
    "native thread": (
        "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))",
        "1 native thread,",
    ),
    "socket": ("import socket\nS = socket.socket()", "opened a socket"),
    "file for writing": ("F = open('out.txt', 'w')", "left"),
    "file for reading": ("F = open(__file__)", "mine.py open"),
    "pipe": ("import os\nP = os.pipe()", "left pipe:"),
    "shared memory": (
        "import mmap\nM = mmap.mmap(-1, 4096)",
        "memory that forked processes would share",
    ),
    "process": ("import subprocess\nP = subprocess.Popen(['sleep', '60'])", "started process"),
    "attribute": ("", "asks for fresh starts"),
}


@pytest.mark.parametrize("what", UNSAFE)
def test_all_starts_are_fresh_if_the_import_is_unsafe_or_the_trainable_asks_for_it(
    start, warm, module, what
):
    source, reason = UNSAFE[what]
    tail = "train.studydb_start = 'fresh'" if what == "attribute" else ""
    trainable = module(f"{source}\ndef train(config):\n    return 1.0\n{tail}\n")

    ends = [start(trainable, server=warm).finish()[-1] for _ in range(2)]

    assert ends == [Ended(End.COMPLETED)] * 2
    assert warm.starts == ["fresh", "fresh"]
    assert len(warm.printed) == 1, warm.printed
    assert reason in warm.printed[0]


@pytest.mark.parametrize("imports_pyarrow", [True, False])
def test_trials_start_warm_despite_a_thread_of_jemalloc_only_if_pyarrow_is_imported(
    start, warm, module, tmp_path, imports_pyarrow
):
    (tmp_path / "pyarrow.py").touch()
    trainable = module(
        f"""
        import _thread, ctypes, time{", pyarrow" if imports_pyarrow else ""}
        NAMED = _thread.allocate_lock()
        NAMED.acquire()
        def purge():
            ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd")  # PR_SET_NAME
            NAMED.release()
            time.sleep(60)
        _thread.start_new_thread(purge, ())
        NAMED.acquire()
        def train(config):
            return 1.0
        """
    )

    assert start(trainable, server=warm).finish()[-1] == Ended(End.COMPLETED)

    assert warm.starts == ["warm" if imports_pyarrow else "fresh"]
    assert [("1 native thread," in line) for line in warm.printed] == [True] * (not imports_pyarrow)


DYNAMO = {
    "imported": "",
    "raises": "1 / 0",
    "exits": "raise SystemExit(0)",
    "leaves a thread": "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))",
    "leaves a file open": "F = open(__file__)",
    "hangs": "import time\ntime.sleep(600)",
}


@pytest.mark.parametrize("case", DYNAMO)
def test_template_imports_what_pytorch_imports_for_its_first_optimizer_if_this_is_safe(
    start, warm, module, tmp_path, case
):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_dynamo.py").write_text(DYNAMO[case])
    trainable = module(
        """
        import sys, torch
        from studydb.child import template
        template._TRY_S = 1
        def train(config):
            return {"loss": 1.0, "imported": "torch._dynamo" in sys.modules}
        """
    )

    assert metrics_of(start(trainable, server=warm))["imported"] == (case == "imported")
    assert (warm.starts, warm.printed) == (["warm"], [])


def test_exit_handlers_of_an_import_are_called_only_in_the_template(start, warm, module):
    trainable = module(
        """
        import atexit, tempfile, weakref
        from pathlib import Path
        MADE = tempfile.TemporaryDirectory()
        atexit.register(lambda: print("at exit of the import"))
        def train(config, trial):
            atexit.register(print, "at exit of", trial.number)
            return {"loss": 1.0, "there": Path(MADE.name).exists(), "path": MADE.name}
        """
    )

    attempts = [start(trainable, server=warm, number=number) for number in (3, 4)]
    found = [metrics_of(attempt) for attempt in attempts]
    warm.templates.close()

    assert [each["there"] for each in found] == [True, True]
    assert [attempt.printed for attempt in attempts] == ["at exit of 3\n", "at exit of 4\n"]
    assert not Path(found[0]["path"]).exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("raise ValueError('no')", "its import raised ValueError"),
    ],
)
def test_all_starts_are_fresh_if_the_template_fails_or_dies_in_its_import(
    start, warm, module, line, reason
):
    trainable = module(
        f"""
        import os
        if os.environ.get("DIES", "yes") == "yes":
            {line}
        def train(config):
            return 1.0
        """
    )

    attempt = start(trainable, server=warm)
    attempt.finish()

    assert warm.starts == ["fresh"]
    assert len(warm.printed) == 1
    assert reason in warm.printed[0]


def test_import_that_hangs_makes_all_starts_fresh(start, warm, module, monkeypatch):
    monkeypatch.setattr(templates, "IMPORT_TIMEOUT_S", 0.5)
    trainable = module(
        """
        import os, time
        from pathlib import Path
        if not Path("once").exists():
            Path("once").touch()
            time.sleep(600)
        def train(config):
            return 1.0
        """
    )

    assert start(trainable, server=warm).finish()[-1] == Ended(End.COMPLETED)

    assert warm.starts == ["fresh"]
    assert "its import took more than 0.5 s" in warm.printed[0]


def test_stopping_worker_does_not_wait_for_an_import(start, warm, module):
    trainable = module("import time\ntime.sleep(600)\ndef train(config):\n    return 1.0\n")
    warm.is_stopping = True
    began_s = time.monotonic()

    attempt = start(trainable, server=warm)

    assert time.monotonic() - began_s < 10
    assert (warm.starts, warm.printed) == (["fresh"], [])
    attempt.child.kill()


# when a template is replaced


def test_changed_module_is_imported_again_and_a_message_names_the_file(start, warm, module):
    gate = "while not os.path.exists('gate'): time.sleep(.01)"
    source = "import os, time\ndef train(config):\n    {}\n    return {{'loss': {}}}\n"
    old = start(module(source.format(gate, 1.0)), server=warm)
    template = warm.started[0].template

    new = start(module(source.format("pass", 2.25)), server=warm)
    reports = new.finish()

    assert reports[0].result.value == 2.25
    assert warm.starts == ["warm", "warm"]
    assert len(warm.printed) == 1
    assert "mine.py has changed" in warm.printed[0]
    assert not template.is_dead  # its attempt, started before the change, still runs
    (old.workdir / "gate").touch()
    assert old.finish()[0].result.value == 1.0
    warm.templates.close_retired()
    assert template.is_dead


def test_module_imported_by_the_trainable_is_imported_again_after_a_change(
    start, warm, module, tmp_path
):
    (tmp_path / "below.py").write_text("VALUE = 1.0\n")
    trainable = module("import below\ndef train(config):\n    return below.VALUE\n")
    first = start(trainable, server=warm).finish()[0].result.value

    (tmp_path / "below.py").write_text("VALUE = 22.0\n")
    second = start(trainable, server=warm).finish()[0].result.value

    assert (first, second) == (1.0, 22.0)
    assert "below.py has changed" in warm.printed[0]


@pytest.mark.slow
def test_template_whose_memory_has_grown_is_replaced(start, warm, module):
    trainable = module(
        """
        import os
        KEPT = []
        os.register_at_fork(before=lambda: KEPT.append(b"x" * (100 << 20)))
        def train(config):
            return {"loss": 1.0, "parent": os.getppid()}
        """
    )

    parents = [metrics_of(start(trainable, server=warm))["parent"] for _ in range(5)]

    assert parents[0] == parents[1] != parents[-1]
    assert "grown" in warm.printed[0]


@pytest.mark.parametrize("ahead_s", [1e9, 0.0])
def test_template_is_kept_if_the_mtime_of_its_module_file_is_now_or_in_the_future(
    start, warm, module, ahead_s
):
    trainable = module(PLAIN)
    now_s = time.time() + ahead_s
    os.utime(Path(trainable.workdir) / "mine.py", (now_s, now_s))

    importers = {metrics_of(start(trainable, server=warm))["imported_by"] for _ in range(3)}

    assert len(importers) == 1
    assert warm.starts == ["warm"] * 3
    assert warm.printed == []


# how templates end


def test_template_that_does_not_answer_is_killed(start, warm, module, monkeypatch):
    monkeypatch.setattr("studydb.worker.children._START_TIMEOUT_S", 0.5)
    trainable = module(PLAIN)
    stopped = metrics_of(start(trainable, server=warm))["imported_by"]
    os.kill(stopped, signal.SIGSTOP)

    assert metrics_of(start(trainable, server=warm))["imported_by"] != stopped

    assert not is_running(stopped)


@pytest.mark.slow
def test_worker_ends_although_its_template_does_not_answer(start, warm, module):
    stopped = metrics_of(start(module(PLAIN), server=warm))["imported_by"]
    os.kill(stopped, signal.SIGSTOP)

    warm.templates.close()

    assert not is_running(stopped)


def test_idle_template_ends_and_the_next_attempt_makes_another(start, warm, module, monkeypatch):
    monkeypatch.setattr(templates, "IDLE_S", 0.0)
    trainable = module(PLAIN)
    first = metrics_of(start(trainable, server=warm))["imported_by"]

    warm.templates.drop_idle()

    assert not is_running(first)
    assert metrics_of(start(trainable, server=warm))["imported_by"] != first
    assert warm.starts == ["warm", "warm"]


def test_template_with_a_running_attempt_is_not_idle(start, warm, module, monkeypatch):
    monkeypatch.setattr(templates, "IDLE_S", 0.0)
    trainable = module("import time\ndef train(config):\n    time.sleep(60)\n")
    attempt = start(trainable, server=warm)

    warm.templates.drop_idle()

    assert not warm.started[0].template.is_dead
    assert attempt.child.exit is None


def test_if_a_template_is_killed_its_attempts_end_and_another_template_is_made(start, warm, module):
    trainable = module(
        """
        import os, time
        def train(config, trial):
            trial.report({"loss": 1.0, "parent": os.getppid()})
            time.sleep(60 * config["lr"])
        """
    )
    running = start(trainable, server=warm)
    parent = running.receive().result.metrics["parent"]

    os.kill(parent, signal.SIGKILL)

    eventually(lambda: running.child.exit is not None)
    assert running.child.exit.signal == signal.SIGKILL
    assert start(trainable, server=warm, config={"lr": 0}).finish()[-1] == Ended(End.COMPLETED)
    assert warm.starts == ["warm", "warm"]


def test_templates_that_die_repeatedly_make_all_starts_fresh(start, warm, module):
    trainable = module(PLAIN)
    for _ in range(templates.DEATHS_LIMIT):
        os.kill(metrics_of(start(trainable, server=warm))["imported_by"], signal.SIGKILL)
        eventually(lambda: warm.started[-1].template.is_dead)

    metrics_of(start(trainable, server=warm))

    assert warm.starts[-1] == "fresh"
    assert "have died" in warm.printed[-1]


@pytest.mark.slow
def test_template_and_attempts_end_if_their_fork_server_is_killed(start, pump, module, tmp_path):
    server = ForkServer()
    server.start()
    warm = WarmServer(server, pump, tmp_path)
    trainable = module(
        """
        import os, time, subprocess
        def train(config, trial):
            strayed = subprocess.Popen(["sleep", "60"], start_new_session=True).pid
            trial.report({"loss": 1.0, "pids": [os.getppid(), os.getpid(), strayed]})
            time.sleep(60 * config["lr"])
        """
    )
    running = start(trainable, server=warm)
    pids = running.receive().result.metrics["pids"]

    os.kill(server.pid, signal.SIGKILL)

    eventually(lambda: not any(is_running(pid) for pid in pids), timeout_s=5)
    eventually(lambda: running.child.exit is not None)
    assert start(trainable, server=warm, config={"lr": 0}).finish()[-1] == Ended(End.COMPLETED)
    warm.templates.close()
    server.close()


# worker processes


@pytest.mark.slow
def test_first_warm_attempt_is_started_again_fresh_if_killed_before_its_first_report(stage):
    stage.create("warmth:dies_in_a_fork", num_trials=2)

    worker = stage.start()

    assert worker.exit_code() == 0, worker.output()
    assert [(trial.state, trial.losses) for trial in stage.study.trials] == [("TERMINATED", 0)] * 2
    assert worker.output().count("imports the trainable anew") == 1
    assert "was killed by SIGKILL" in worker.output()


def test_show_prints_how_each_attempt_was_started(stage):
    stage.create("obedient:one_step")

    worker = stage.start()

    assert worker.exit_code() == 0, worker.output()
    shown = stage.command("show", "staged", "0")
    assert "start_s" in shown
    assert "warm" in shown


def test_worker_with_start_fresh_makes_no_template(stage):
    stage.create("obedient:one_step")

    worker = stage.start(start="fresh")

    assert worker.exit_code() == 0, worker.output()
    (row,) = stage.attempts()
    assert row.start == "fresh"
    assert row.start_s > 0
