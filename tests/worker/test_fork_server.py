"""
Children of the fork server: what they inherit, how they begin and end, and their output.

No child outlives its worker, and a fork server that has died is replaced.
"""

# The trainables below print, as those of users do.
# ruff: noqa: T201

import ctypes
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from fleet.server_script import BEGIN
from fleet.workers import eventually
from msgspec import structs

import studydb
from studydb.child.forking import SERVER_ID_VARIABLE
from studydb.child.messages import End, Ended, Reported
from studydb.processes import (
    children_of,
    is_alive,
    is_local,
    kill_group,
    process_record,
    start_of,
    this_process,
)
from studydb.worker import fork_server_client
from studydb.worker.attempt_output import OutputPump
from studydb.worker.fork_server_client import ForkServer

ROOT = Path(__file__).parents[2]

MOST_MODULES = 100
"""The fork server may import this many studydb modules at most; the first trial waits for them."""


def succeed(config):
    return config["lr"]


def report_and_sleep(config):
    studydb.report({"loss": 1.0})
    time.sleep(60)


def with_grandchildren(config):
    """Start two processes, the second in another session; report; then exit, return or sleep."""
    for detached in (False, True):
        print(subprocess.Popen(["sleep", "60"], start_new_session=detached).pid)
    studydb.report({"loss": 1.0})
    if config.get("end") == "exit":
        os._exit(1)
    if config.get("end") != "return":
        time.sleep(60)


def is_running(pid):
    return start_of(pid) is not None


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def grandchildren_of(attempt):
    eventually(lambda: attempt.printed.count("\n") == 2)
    return [int(line) for line in attempt.printed.split()]


@pytest.fixture
def server():
    """A fork server that the test may kill."""
    with closing(ForkServer()) as server:
        yield server


# what a child inherits


def test_child_has_its_own_descriptors_session_directory_and_arguments(start, server):
    def inspect(config):
        # `iterdir` also lists the descriptor by which it reads; this descriptor is closed by now.
        descriptors = [path for path in list(Path("/proc/self/fd").iterdir()) if path.is_symlink()]
        facts = {
            "descriptors": {path.name: str(path.readlink()) for path in descriptors},
            "directory": str(Path.cwd()),
            "arguments": sys.argv,
            "is leader": os.getpid() == os.getpgrp() == os.getsid(0),
            "threads": threading.active_count(),
        }
        Path("facts.json").write_text(json.dumps(facts))
        return 1.0

    with socket.create_server(("127.0.0.1", 0)), (ROOT / "pyproject.toml").open():
        server.start()
        attempt = start(inspect, server=server)
        assert attempt.finish()[-1] == Ended(End.COMPLETED)

    facts = json.loads((attempt.workdir / "facts.json").read_text())
    kinds = {fd: path.partition(":")[0] for fd, path in facts.pop("descriptors").items()}
    channel = next(fd for fd in kinds if int(fd) > 2)
    assert kinds == {"0": "/dev/null", "1": "pipe", "2": "pipe", channel: "socket"}
    assert facts == {
        "directory": str(attempt.workdir),
        "arguments": ["studydb worker"],
        "is leader": True,
        "threads": 1,
    }


def test_fresh_child_imports_no_more_of_studydb_than_the_fork_server_has_imported(start):
    def train(config):
        print(json.dumps([name for name in sys.modules if name.startswith("studydb")]))
        return 1.0

    code = "import json, sys, studydb.child.fork_server; print(json.dumps([*sys.modules]))"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)
    attempt = start(train)
    attempt.finish()

    by_server = {name for name in json.loads(printed) if name.startswith("studydb")}
    assert set(json.loads(attempt.printed)) == by_server
    assert len(by_server) <= MOST_MODULES


def test_program_started_by_a_trial_inherits_no_channel_to_the_worker(start):
    def train(config):
        subprocess.run(["ls", "-l", "/proc/self/fd"], check=True, close_fds=False)
        return 1.0

    attempt = start(train)

    assert attempt.finish()[-1] == Ended(End.COMPLETED)
    assert "pipe:" in attempt.printed
    assert "socket:" not in attempt.printed


def test_process_left_behind_by_a_trial_does_not_keep_the_channel_open(start):
    def train(config):
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        return 1.0

    # While the neighbour runs, the process that is left behind stays alive: while a child runs, the
    # fork server kills no orphan that was forked without exec.
    neighbour = start(report_and_sleep)
    neighbour.receive()
    attempt = start(train)

    assert isinstance(attempt.receive(), Reported)
    assert attempt.receive() == Ended(End.COMPLETED)
    with pytest.raises(EOFError):
        attempt.receive()


def test_modules_in_the_working_directory_do_not_shadow_modules_of_the_fork_server(
    start, server, tmp_path, monkeypatch
):
    for name in ("json", "numpy", "studydb", "select"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadow')")
    monkeypatch.chdir(tmp_path)

    assert start(succeed, server=server).finish()[-1] == Ended(End.COMPLETED)


# how a child begins


def test_child_starts_while_its_job_is_made_and_is_killed_if_it_gets_no_job(server, pump, tmp_path):
    def fail():
        eventually(lambda: children_of(server.pid))
        os.kill(*children_of(server.pid), signal.SIGSTOP)  # so the child cannot end by itself
        raise ZeroDivisionError

    server.start()
    output = pump.open(tmp_path)

    with pytest.raises(ZeroDivisionError):
        server.spawn(fail, stdout=output.stdout, stderr=output.stderr)

    assert children_of(server.pid) == []
    output.finish()
    assert output.tail() == b""


# how a child ends


def test_segfault_of_a_trial_prints_the_stack_and_harms_no_other_trial(start):
    def crash(config):
        ctypes.string_at(0)

    neighbour = start(report_and_sleep)
    neighbour.receive()
    attempt = start(crash)

    assert attempt.finish() == []
    assert str(attempt.child.exit) == "was killed by SIGSEGV"
    assert "in crash" in attempt.printed
    assert neighbour.child.exit is None


def test_child_that_holds_the_gil_can_be_killed_and_harms_no_other_trial(start):
    def hold(config):
        print("holding")
        while True:
            ctypes.PyDLL(None).sleep(60)

    attempt = start(hold)
    eventually(lambda: attempt.printed)

    attempt.child.terminate()
    assert start(succeed).finish()[-1] == Ended(End.COMPLETED)
    assert attempt.child.exit is None
    attempt.child.kill()

    assert attempt.child.wait(5).signal == signal.SIGKILL


@pytest.mark.parametrize("end", ["exit", "kill", "return"])
def test_grandchildren_end_when_the_child_that_started_them_ends(start, end):
    attempt = start(with_grandchildren, config={"end": end})
    attempt.receive()
    if end == "kill":
        attempt.child.kill()
    inside, outside = grandchildren_of(attempt)

    attempt.child.wait(5)

    eventually(lambda: not is_running(inside), timeout_s=0.2)
    eventually(lambda: not is_running(outside), timeout_s=5)


def test_daemon_of_a_trial_lives_until_the_trial_ends(start):
    def with_daemon(config):
        subprocess.run(["sh", "-c", "setsid sleep 60 & echo $!"], check=True)
        time.sleep(60)

    attempt = start(with_daemon)
    daemon = int(eventually(lambda: attempt.printed))
    is_adopted = eventually(lambda: parent_of(daemon) == parent_of(attempt.child.process.pid))

    start(succeed).finish()
    # The daemon lives: every 0.5 s the fork server kills orphans, but only those of dead children.
    with pytest.raises(AssertionError):
        eventually(lambda: not is_running(daemon), timeout_s=1.2)
    attempt.child.kill()

    assert is_adopted
    eventually(lambda: not is_running(daemon), timeout_s=5)


def test_is_alive_compares_start_time_boot_and_pid_namespace(start):
    attempt = start(report_and_sleep)
    attempt.receive()
    process = attempt.child.process

    assert is_alive(process)
    assert is_local(process)
    assert is_alive(this_process())
    assert not is_alive(structs.replace(process, started=process.started + 1))
    assert is_alive(structs.replace(process, pid=2**22 - 1, boot_id="another boot"))
    assert is_alive(structs.replace(process, pid=2**22 - 1, pid_namespace="pid:[1]"))
    attempt.child.kill()
    attempt.child.wait(5)
    assert not is_alive(process)


def test_zombie_process_is_not_alive():
    zombie = subprocess.Popen(["sleep", "60"])
    process = process_record(zombie.pid, start_of(zombie.pid))

    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)

    assert not is_alive(process)
    zombie.wait()


# the server


def test_threads_may_spawn_children_concurrently(start):
    attempts = []
    threads = [threading.Thread(target=lambda: attempts.append(start(succeed))) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [attempt.finish()[-1] for attempt in attempts] == [Ended(End.COMPLETED)] * 8


def test_fork_server_survives_sigterm_and_the_end_of_the_thread_that_started_it(start, server):
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()

    assert start(succeed, server=server).finish()[-1] == Ended(End.COMPLETED)
    pid = server.pid
    assert os.getsid(pid) == pid  # so that no signal of the worker's terminal reaches the server
    os.kill(pid, signal.SIGTERM)
    assert start(succeed, server=server).finish()[-1] == Ended(End.COMPLETED)
    assert server.pid == pid


def test_children_of_a_killed_fork_server_end_and_the_next_child_gets_another_server(start, server):
    attempt = start(with_grandchildren, server=server)
    inside, outside = grandchildren_of(attempt)
    killed = server.pid

    os.kill(killed, signal.SIGKILL)

    assert attempt.child.wait(2).signal == signal.SIGKILL
    for pid in (attempt.child.process.pid, inside, outside):
        eventually(lambda pid=pid: not is_running(pid), timeout_s=5)
    assert start(succeed, server=server).finish()[-1] == Ended(End.COMPLETED)
    assert server.pid != killed


@pytest.mark.nightly
def test_fork_server_killed_between_requests_is_replaced(start, server):
    server.start()
    for _ in range(5):
        os.kill(server.pid, signal.SIGKILL)
        assert start(succeed, server=server).finish()[-1] == Ended(End.COMPLETED)


def test_process_that_reuses_the_pid_of_a_child_is_not_killed(start):
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    attempt = start(report_and_sleep)
    attempt.receive()
    child = attempt.child
    real = child.process

    child._process = process_record(other.pid, start_of(other.pid) - 1)
    child.kill()
    child.terminate()
    child.abandon()

    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(0.2)
    other.kill()
    other.wait()
    kill_group(real.pid)


def test_close_ends_the_fork_server_its_children_and_their_descendants(start, server):
    attempt = start(with_grandchildren, server=server)
    pids = grandchildren_of(attempt)

    server.close()

    assert not any(is_running(pid) for pid in [attempt.child.process.pid, *pids])
    assert attempt.child.exit.signal == signal.SIGKILL
    with pytest.raises(OSError, match="has been closed"):
        start(report_and_sleep, server=server)


@pytest.mark.parametrize("how", ["fresh", "warm"])
def test_descendants_of_a_killed_worker_end_within_two_seconds(tmp_path, how):
    (tmp_path / "mine.py").write_text(
        "import os, subprocess, time\n"
        "def train(config):\n"
        "    for detached in (False, True):\n"
        "        print(subprocess.Popen(['sleep', '60'], start_new_session=detached).pid)\n"
        "    print(os.getpid(), os.getppid())\n"
        "    time.sleep(60)\n"
    )
    script = BEGIN + (
        "server, pump = ForkServer(), OutputPump()\n"
        "server.start()\n"
        "templates = Templates(server, pump, directory=Path(directory) / 'templates',\n"
        "                      enabled=how == 'warm', say=print, is_stopping=lambda: False)\n"
        "for number in range(2):\n"
        "    output = pump.open(Path(directory) / str(number))\n"
        "    job = new_job(number)\n"
        "    started = templates.spawn(job.to_import, lambda: job,\n"
        "        stdout=output.stdout, stderr=output.stderr)\n"
        "    assert started.start == how\n"
        "    output.release()\n"
        "time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    outputs = [tmp_path / number / "stdout" for number in "01"]
    eventually(lambda: all(p.exists() and p.read_text().count("\n") == 3 for p in outputs))
    pids = {int(pid) for path in outputs for pid in path.read_text().split()}
    assert all(is_running(pid) for pid in pids)

    supervisor.kill()
    supervisor.wait()

    assert len(pids) == 2 * 3 + 1
    eventually(lambda: not any(is_running(pid) for pid in pids), timeout_s=2)


def test_fork_server_that_still_imports_dies_with_its_worker(tmp_path):
    modules, begun = tmp_path / "modules", tmp_path / "begun"
    modules.mkdir()
    (modules / "msgspec.py").write_text(
        f"import time\nfrom pathlib import Path\nPath({str(begun)!r}).touch()\ntime.sleep(60)\n"
    )
    script = (
        "import os, sys, time\n"
        "from studydb.worker.fork_server_client import ForkServer\n"
        "os.environ['PYTHONPATH'] = sys.argv[1]\n"
        "server = ForkServer()\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, modules], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with worker.stdout:
        pid = int(worker.stdout.readline())
    eventually(begun.exists)

    worker.kill()
    worker.wait()

    eventually(lambda: not is_running(pid), timeout_s=1)


def test_spawn_leaks_no_descriptors(start):
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    start(succeed).finish()
    before = count()

    for _ in range(10):
        start(succeed).finish()

    assert count() == before


# output


def test_flood_of_output_is_bounded_on_disk_and_in_memory(start):
    def flood(config):
        block = b"x" * 999 + b"\n"
        for _ in range(100):
            os.write(1, block * 1000)
        os.write(1, b"the end\n")
        print("to stderr", file=sys.stderr)
        return 1.0

    attempt = start(flood)
    messages = attempt.finish()

    files = sorted(path.name for path in attempt.directory.iterdir() if path.is_file())
    sizes = [(attempt.directory / name).stat().st_size for name in ("stdout", "stdout.1")]
    assert messages[-1] == Ended(End.COMPLETED)
    assert files == ["stderr", "stdout", "stdout.1"]
    assert sizes[1] == 5 << 20
    assert sum(sizes) <= 10 << 20
    assert (attempt.directory / "stdout").read_bytes().endswith(b"the end\n")
    assert attempt.printed.endswith("the end\nto stderr\n")
    assert len(attempt.output.tail()) == 8 << 10
    assert len(attempt.output.tail(1 << 30)) == 64 << 10


def test_output_is_on_disk_while_the_child_runs(start):
    def train(config):
        print("epoch 1")
        time.sleep(60)

    path = start(train).directory / "stdout"

    assert eventually(lambda: path.exists() and path.read_text()) == "epoch 1\n"


def test_trial_completes_if_its_output_cannot_be_written_to_disk(start, pump, tmp_path):
    (tmp_path / "file").write_text("where a directory should be")

    def train(config):
        for _ in range(100):
            print("x" * 10_000)
        return 1.0

    attempt = start(train, output=pump.open(tmp_path / "file"))
    messages = attempt.finish()

    assert messages[-1] == Ended(End.COMPLETED)
    assert attempt.output.tail() == (b"x" * 10_000 + b"\n")[-8192:]
    assert attempt.printed.endswith("xxx\n")


def test_attempt_that_prints_nothing_has_no_output_files(start):
    attempt = start(succeed)
    attempt.finish()

    assert [path.name for path in attempt.directory.iterdir()] == ["scratch"]


def test_finish_of_an_output_does_not_wait_for_a_process_that_keeps_the_pipe_open(tmp_path):
    pump = OutputPump(limit_bytes=100)
    output = pump.open(tmp_path)
    kept_open = os.dup(output.stdout)
    os.write(kept_open, b"before\n")

    output.finish(timeout_s=0.05)

    assert output.tail() == b"before\n"
    os.close(kept_open)
    pump.close()
    output.finish()


@pytest.mark.parametrize("limit_bytes", [20, 2000])
def test_file_whose_close_fails_does_not_end_the_reading_of_other_output(
    tmp_path, monkeypatch, limit_bytes
):
    """With the lower limit, a file is also closed before the end of the output."""
    close = os.close

    def close_with_error(number):
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        close(number)
        if is_file:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close_with_error)
    pump = OutputPump(limit_bytes=limit_bytes)
    for name in ("first", "second"):
        output = pump.open(tmp_path / name)
        os.write(output.stdout, b"more bytes than one file may have\n")
        output.finish()
        assert output.tail() == b"more bytes than one file may have\n"
    pump.close()


def test_close_of_the_output_pump_writes_what_is_in_the_pipes(tmp_path):
    pump = OutputPump()
    output = pump.open(tmp_path)
    os.write(output.stderr, b"last words")

    pump.close()

    assert (tmp_path / "stderr").read_bytes() == b"last words"
    output.finish()


def of_dead_worker(batch_job=""):
    """Return the value of `SERVER_ID_VARIABLE` for a dead worker that had this process's pid."""
    me = this_process()
    return f"id {me.boot_id} {me.pid_namespace} {me.pid} {me.started - 1} {batch_job}"


def test_worker_that_inherits_the_variable_of_a_dead_worker_does_not_kill_itself(
    server, monkeypatch
):
    inherited = {SERVER_ID_VARIABLE: of_dead_worker()}
    found, killed = [(pid, inherited) for pid in (os.getpid(), os.getppid())], []
    # The environments are simulated, because workers of other tests would kill a process whose
    # environment has this value of the variable.
    monkeypatch.setattr(fork_server_client, "environments_with", lambda _: found)
    monkeypatch.setattr(fork_server_client, "kill_group", killed.append)

    server.start()

    assert killed == []


def test_worker_does_not_kill_the_batch_job_that_a_dead_workers_trial_has_submitted(server):
    started = {}
    for job in ("1", "2", None):
        given = os.environ | {SERVER_ID_VARIABLE: of_dead_worker(batch_job="1")}
        given |= {} if job is None else {"SLURM_JOB_ID": job}
        started[job] = subprocess.Popen(["sleep", "60"], env=given, start_new_session=True)
    try:
        server.start()

        assert started["1"].wait(5.0) == started[None].wait(5.0) == -signal.SIGKILL
        assert started["2"].poll() is None
    finally:
        for each in started.values():
            each.kill()
            each.wait()
