"""Trials with devices or a memory limit: what they see, their locks, warm starts and memory."""

# The trainables below print, as those of users do.
# ruff: noqa: T201

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from fleet.workers import eventually
from harness.child_messages import metrics_of
from harness.fake_nvidia_smi import UUIDS, FakeNvidiaSmi

import studydb
from studydb.child.messages import End, Ended
from studydb.devices import Devices, MemoryLimit, grants, nvidia_smi
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
from studydb.domain.failures import Failure
from studydb.domain.space.search_space import Space
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.processes import start_of
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.holdings import NOTHING_HELD, Holdings

ROOT = Path(__file__).parents[2]
A, B, C, D = UUIDS
VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def devices(tmp_path):
    """The two cards of a worker."""
    folder = tmp_path / "locks"
    folder.mkdir()
    return Devices(Offer(CUDA, (Device(A, A, A), Device(B, B, B))), folder)


@pytest.fixture
def server():
    """A fork server for one test; the test may suspend the server or lower the server's limits."""
    with closing(ForkServer()) as server:
        yield server


@pytest.fixture
def start_with(start):
    """Return a function that starts an attempt with a grant's environment and lock descriptors."""

    def start_with(function, grant, **job):
        return start(
            function, environment=grant.environment(), descriptors=grant.descriptors, **job
        )

    return start_with


def locks_of(pid):
    """Return the names of the devices' lock files that a process has open."""
    paths = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return {path.name for path in paths if path.name.startswith("studydb-gpu-")}


def sleep(config):
    studydb.report({"loss": 1.0})
    time.sleep(60)


def look(config):
    seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    print(json.dumps(seen))
    return 1.0


# what a trial sees


def test_trial_gets_the_entries_of_the_workers_variable_verbatim(start_with, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", FakeNvidiaSmi(tmp_path).environment["PATH"])
    environ = {VARIABLE: "GPU-aa,GPU-bb,GPU-cc", "STUDYDB_LOCK_DIR": str(tmp_path)}

    attempt = start_with(look, Devices.of("auto", environ).take(2))

    assert attempt.finish()[-1] == Ended(End.COMPLETED)
    assert json.loads(attempt.printed) == {VARIABLE: "GPU-aa,GPU-bb", "CUDA_DEVICE_ORDER": None}


def test_trial_without_devices_sees_none(start_with, devices):
    attempt = start_with(look, devices.take(0))

    assert attempt.finish()[-1] == Ended(End.COMPLETED)
    assert json.loads(attempt.printed)[VARIABLE] == ""


def test_variable_is_set_before_the_module_of_the_trial_is_imported(start_with, devices, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n"
        f"SEEN = os.environ.get({VARIABLE!r})\n"
        "def train(config):\n"
        "    print(SEEN)\n"
        "    return 1.0\n"
    )
    trainable = Trainable("u", TrainableKind.IMPORT, "mine:train", str(tmp_path), "3.11")

    attempt = start_with(trainable, devices.take(1))

    assert attempt.finish()[-1] == Ended(End.COMPLETED)
    assert attempt.printed == f"{A}\n"


# how long the devices stay locked


def test_device_stays_locked_until_the_process_of_its_trial_has_ended(start_with, devices):
    grant = devices.take(1)
    attempt = start_with(sleep, grant)
    attempt.receive()

    grant.release(patience_s=0)  # as if the worker had died

    assert locks_of(attempt.child.process.pid) == {f"studydb-gpu-{A}.lock"}
    assert devices.take(2) is None
    attempt.child.kill()
    attempt.child.wait()
    assert devices.take(2) is not None


def test_fork_server_keeps_no_device_locked(start_with, devices, server):
    server.start()
    grant = devices.take(2)
    attempt = start_with(look, grant, server=server)
    attempt.finish()

    assert locks_of(server.pid) == set()
    grant.release()
    assert devices.take(2) is not None


def test_trial_of_another_slot_does_not_inherit_the_lock(start_with, devices, server):
    first = start_with(sleep, devices.take(1), server=server)
    second = start_with(sleep, devices.take(1), server=server)
    for attempt in (first, second):
        attempt.receive()

    assert locks_of(first.child.process.pid) == {f"studydb-gpu-{A}.lock"}
    assert locks_of(second.child.process.pid) == {f"studydb-gpu-{B}.lock"}


def test_process_that_would_lack_a_lock_is_not_started(start_with, devices, server):
    start_with(look, devices.take(0), server=server).finish()
    used = {int(link.name) for link in Path(f"/proc/{server.pid}/fd").iterdir()}
    free = [number for number in range(1000) if number not in used]
    limit = free[3]  # room for the channel, stdout and stderr, but not for the lock
    psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE, (limit, limit))

    with pytest.raises(OSError, match="Too many open files"):
        start_with(look, devices.take(1), server=server)

    assert start_with(look, devices.take(0), server=server).finish()[-1] == Ended(End.COMPLETED)


def with_own_program(config):
    command = ["sleep", "60"]
    print(subprocess.Popen(command, close_fds=False, start_new_session=True).pid)
    studydb.report({"loss": 1.0})
    time.sleep(60)


def test_device_stays_locked_while_a_program_of_a_dead_trial_uses_it(start_with, devices, server):
    grant = devices.take(1)
    attempt = start_with(with_own_program, grant, server=server)
    attempt.receive()
    program = psutil.Process(int(eventually(lambda: attempt.printed)))
    psutil.Process(server.pid).suspend()  # so that nothing kills the program
    attempt.child.kill()
    eventually(lambda: start_of(attempt.child.process.pid) is None, what="the end of the trial")
    grant.release(patience_s=0)

    assert locks_of(program.pid) == {f"studydb-gpu-{A}.lock"}
    assert sum(devices.free_parts()) == 1

    psutil.Process(server.pid).resume()
    eventually(lambda: sum(devices.free_parts()) == 2, what="the release of the device")
    eventually(lambda: start_of(program.pid) is None, what="the end of the program")


def test_command_of_a_trial_keeps_its_device_locked(start_with, devices, tmp_path):
    command = studydb.Command(["sh", "-c", "ls -l /proc/self/fd; echo; sleep 60"])
    trainable = command.describe(Space({}), workdir=tmp_path)
    grant = devices.take(1)

    attempt = start_with(trainable, grant)

    eventually(lambda: attempt.printed.count("\n") > 3)
    assert f"studydb-gpu-{A}.lock" in attempt.printed
    assert "socket:" not in attempt.printed


WORKER = """
import os, sys, time
from pathlib import Path
from studydb.child.job import Job, TrainableImport
from studydb.devices import Devices
from studydb.devices.discovery import Device, Offer
from studydb.devices.families import CUDA
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable
from studydb.worker.attempt_output import OutputPump
from studydb.worker.fork_server_client import ForkServer

folder, uuid = sys.argv[1:]
server, pump = ForkServer(), OutputPump()
server.start()
grant = Devices(Offer(CUDA, (Device(uuid, uuid, uuid),)), Path(folder)).take(1)
output = pump.open(Path(folder) / "log")
trainable = Trainable("u", "import", "mine:train", folder, "3.11")
to_import = TrainableImport("s", trainable, True, (folder,), environment=grant.environment())
job = Job(to_import, "t", 0, 1, {}, 0, Objective("loss", Mode.MIN), folder, "inline:")
server.spawn(
    lambda: job, stdout=output.stdout, stderr=output.stderr, descriptors=grant.descriptors
)
output.release()
(Path(folder) / "server").write_text(str(server.pid))
time.sleep(60)
"""


def test_device_of_a_killed_worker_is_free_only_after_its_trial(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os, time\n"
        "def train(config):\n"
        "    open('trial', 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), A], cwd=ROOT)
    pid_of = {
        name: int(eventually(lambda name=name: read(tmp_path / name)))
        for name in ("server", "trial")
    }
    server, trial = psutil.Process(pid_of["server"]), psutil.Process(pid_of["trial"])
    devices = Devices(Offer(CUDA, (Device(A, A, A),)), tmp_path)

    server.suspend()  # otherwise the fork server would kill the trial
    worker.kill()
    worker.wait()

    assert trial.is_running()
    assert devices.take(1) is None
    server.resume()
    assert eventually(lambda: devices.take(1), what="the end of the trial")
    eventually(lambda: start_of(trial.pid) is None, what="the end of the trial")


def read(path):
    return path.read_text() if path.exists() else ""


# warm starts


MODULE = """
import os
SEEN, IMPORTED_BY = os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid()
def train(config, trial):
    return {"loss": 1.0, "seen": SEEN, "by": IMPORTED_BY, "now": os.environ["CUDA_VISIBLE_DEVICES"]}
"""


@pytest.fixture
def module(tmp_path):
    def write(source):
        (tmp_path / "mine.py").write_text(source)
        return Trainable("u", TrainableKind.IMPORT, "mine:train", str(tmp_path), "3.11")

    return write


def test_trial_with_devices_starts_fresh_if_its_trainable_does_not_ask_for_warm_starts(
    start_with, warm, module, devices
):
    trainable = module(MODULE)

    metrics_of(start_with(trainable, devices.take(1), server=warm))
    metrics_of(start_with(trainable, devices.take(0), server=warm))
    warm.templates.allow_devices(trainable)
    metrics_of(start_with(trainable, devices.take(1), server=warm))

    assert warm.starts == ["fresh", "warm", "fresh"]
    assert ["warm starts of trials with devices" in line for line in warm.printed] == [True]


def test_worker_makes_no_template_for_devices_before_an_attempt_shows_that_the_trainable_allows_it(
    start_with, warm, module, devices
):
    trainable = module(MODULE + "train.studydb_start = 'warm'\n")
    grant = devices.take(1)

    first = metrics_of(start_with(trainable, grant, server=warm))
    warm.templates.allow_devices(trainable)
    second = metrics_of(start_with(trainable, grant, server=warm))

    assert warm.starts == ["fresh", "warm"]
    assert first["by"] != second["by"]


def test_template_belongs_to_the_devices_that_its_import_could_see(
    start_with, warm, module, devices
):
    trainable = module(MODULE + "train.studydb_start = 'warm'\n")
    warm.templates.allow_devices(trainable)
    first, second = devices.take(1), devices.take(1)

    seen = [
        metrics_of(start_with(trainable, grant, server=warm))
        for grant in (first, second, devices.take(0), first)
    ]

    assert [one["seen"] for one in seen] == [one["now"] for one in seen] == [A, B, "", A]
    assert seen[0]["by"] == seen[3]["by"]
    assert len({one["by"] for one in seen}) == 3
    assert warm.starts == ["warm"] * 4
    assert warm.printed == []


def test_template_keeps_no_device_locked(start_with, warm, module, devices):
    trainable = module(MODULE + "train.studydb_start = 'warm'\n")
    warm.templates.allow_devices(trainable)
    grant = devices.take(1)
    template = metrics_of(start_with(trainable, grant, server=warm))["by"]

    assert locks_of(template) == set()
    grant.release()
    assert devices.take(2) is not None


@pytest.mark.parametrize(
    "touched",
    [
        ("/dev/nvidia0", "the import has opened the device /dev/nvidia0"),
        ("/usr/lib/libcuda.so.1", "the import may have initialized CUDA"),
    ],
)
def test_template_whose_import_has_touched_a_device_is_not_used(
    start_with, warm, module, devices, touched
):
    path, reason = touched
    opened = (
        f"from studydb.child import fork_safety\nfork_safety.mapped_files = lambda: {{{path!r}}}\n"
    )
    trainable = module(opened + MODULE + "train.studydb_start = 'warm'\n")
    warm.templates.allow_devices(trainable)
    grant = devices.take(1)

    for _ in range(2):
        metrics_of(start_with(trainable, grant, server=warm))
        warm.templates.allow_devices(trainable)

    assert warm.starts == ["fresh", "fresh"]
    (line,) = warm.printed
    assert line.startswith(f"each trial with devices imports the trainable anew, because {reason}")


# the memory of devices


@pytest.fixture
def smi(tmp_path, monkeypatch):
    fake = FakeNvidiaSmi(tmp_path)
    monkeypatch.setenv("PATH", fake.environment["PATH"])
    monkeypatch.setattr(grants, "has_host_pids", lambda: True)
    return fake


def ended_process():
    popen = subprocess.Popen(["true"])
    popen.wait()
    return popen.pid


def test_release_waits_until_the_driver_has_freed_the_memory(devices, smi, monkeypatch):
    grant, looks, look = devices.take(1), [], nvidia_smi.list_users
    grant.run_by(leader := ended_process())
    smi.list_users((A, leader))

    def counted():
        looks.append(sum(devices.free_parts()))
        if len(looks) == 3:
            smi.list_users()
        return look()

    monkeypatch.setattr(nvidia_smi, "list_users", counted)
    monkeypatch.setattr(grants, "_PAUSE_S", 0.0)

    assert grant.release() is None
    assert looks == [1, 1, 1]
    assert sum(devices.free_parts()) == 2


def test_process_that_still_uses_a_device_is_named_and_the_device_is_given_back(devices, smi):
    sleeping = subprocess.Popen(["sleep", "60"], start_new_session=True)
    grant = devices.take(2)
    grant.run_by(sleeping.pid)
    smi.list_users((B, sleeping.pid))

    line = grant.release(patience_s=0.01)

    assert line.startswith(f"process {sleeping.pid} still uses {B}, 0.01 s after the end")
    assert sum(devices.free_parts()) == 2
    sleeping.kill()
    sleeping.wait()


@pytest.mark.parametrize("case", ["another trial", "another card", "in a container", "hidden"])
def test_release_waits_only_for_the_trials_own_processes_on_the_granted_cards(
    devices, smi, monkeypatch, case
):
    grant = devices.take(1)
    grant.run_by(leader := ended_process())
    if case == "in a container":
        monkeypatch.setattr(grants, "has_host_pids", lambda: False)
    if case == "hidden":  # /proc does not show the processes of other users
        monkeypatch.setattr(grants, "session_of", lambda _: None)
    own = (A, os.getpid())
    users = {"another trial": own, "hidden": own, "another card": (B, leader)}
    smi.list_users(users.get(case, (A, leader)))

    assert grant.release(patience_s=2) is None


# the memory of trials


def allocate(config):
    studydb.report({"loss": 1.0})
    bytearray(int(config["bytes"]))
    return 1.0


@pytest.mark.slow
def test_trial_fails_if_it_allocates_more_memory_than_its_limit(run):
    limit = 600_000_000
    within = run(allocate, memory_bytes=limit, config={"bytes": 10e6})
    beyond = run(allocate, memory_bytes=limit, config={"bytes": 700e6})
    unlimited = run(allocate, config={"bytes": 700e6})

    assert within[-1] == unlimited[-1] == Ended(End.COMPLETED)
    failure = beyond[-1].failure
    assert (beyond[-1].end, failure.type) == (End.FAILED, "MemoryError")
    told = Holdings(memory=MemoryLimit(limit)).explain(failure)
    assert "each of its processes may use 0.6 GB, as its memory_gb says" in told.message


def test_trial_fails_if_many_small_objects_fill_its_memory(run):
    def train(config):
        studydb.report({"loss": 1.0})
        chain = {}
        while True:
            chain = {"next": chain}

    failure = run(train, memory_bytes=300_000_000)[-1].failure

    assert failure.type == "MemoryError"
    assert "in train" in failure.traceback


def test_trial_enters_the_cgroup_of_its_limit(run, tmp_path):
    (tmp_path / "cgroup.procs").touch()

    messages = run(look, memory_bytes=1, cgroup=str(tmp_path))

    assert messages[-1] == Ended(End.COMPLETED)
    assert (tmp_path / "cgroup.procs").read_text() == "0"


def test_trial_whose_cgroup_is_gone_does_not_run(run, tmp_path):
    messages = run(look, memory_bytes=1, cgroup=str(tmp_path / "gone"))

    assert messages[-1].end is End.UNPREPARED


def test_failure_names_the_limit_only_if_the_limit_is_the_cause(tmp_path):
    (tmp_path / "memory.events").write_text("max 3\noom 1\noom_kill 0\n")
    held = Holdings(memory=MemoryLimit(2_000_000_000, tmp_path))
    other = Failure("ValueError", "wrong", "")

    assert held.why_killed() is None
    assert held.explain(other) == other
    assert held.explain(of_gpu := Failure("torch.OutOfMemoryError", "", "")) == of_gpu
    assert "2 GB" in held.explain(Failure("numpy._ArrayMemoryError", "", "")).message
    assert NOTHING_HELD.explain(memory := Failure("MemoryError", "", "")) == memory
    (tmp_path / "memory.events").write_text("max 3\noom 1\noom_kill 2\n")
    assert held.why_killed() == (
        "The trial was out of memory: its processes together may use 2 GB, as its memory_gb says."
    )


def test_process_with_devices_or_a_memory_limit_is_not_kept_for_another_trial(devices):
    assert NOTHING_HELD.may_be_kept
    assert Holdings(devices.take(0)).may_be_kept
    assert not Holdings(devices.take(1)).may_be_kept
    assert not Holdings(memory=MemoryLimit(1)).may_be_kept
