"""
Limits of memory: by cgroup, or for each process if a worker cannot make cgroups.

The tests use a folder that looks like cgroup v2, and no real cgroup.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from studydb.devices import MemoryLimits, memory_limits
from studydb.processes import limit_memory

ROOT = Path(__file__).parents[2]
FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "cgroup.procs", "cgroup.kill")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder like a cgroup: a new folder in it gets the cgroup files that studydb writes to."""
    folder = tmp_path / "service"
    folder.mkdir()
    (tmp_path / "self").write_text("1:name=systemd:/\n0::/service\n")
    make(folder, controllers="cpu memory", enabled="")
    real = Path.mkdir

    def mkdir(path, *arguments, **options):
        real(path, *arguments, **options)
        if path.parent == folder:
            for name in FILES:
                (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return folder


def make(folder, *, controllers, enabled):
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(enabled)
    (folder / "cgroup.procs").touch()


def limits_of(tree):
    return MemoryLimits.of_this_process(tree.parent / "self", tree.parent)


def test_trial_gets_a_cgroup_that_limits_all_of_its_processes_together(tree):
    limit = limits_of(tree).limit(2_000_000_000)

    assert limit.cgroup.parent == tree
    assert {name: (limit.cgroup / name).read_text() for name in FILES[:3]} == {
        "memory.max": "2000000000",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }
    assert str(limit).startswith("its processes together may use 2 GB")


def test_worker_moves_out_of_the_cgroup_whose_child_cgroups_are_limited(tree):
    child = subprocess.Popen(["sleep", "60"])
    limits_of(tree)
    child.kill()
    child.wait()

    leaf = tree / f"studydb-worker-{os.getpid()}"
    assert (leaf / "cgroup.procs").read_text() != ""
    assert (tree / "cgroup.subtree_control").read_text() == "+memory"


class Kernel:
    """
    A kernel in memory; `cgroup_of` has the folder of each process's cgroup, by pid.

    `write` returns whether it has succeeded. It cannot enable limits for child cgroups of `folder`
    while a process is in `folder`. It cannot move the process with the pid ENDED.

    Args:
        families: The pids of the worker's processes, one tuple for each call of `family`; further
            calls return the last tuple.
        others: The pids of processes of other programs in the same cgroup.
    """

    def __init__(self, folder, *families, others=()):
        self.folder, self.families = folder, list(families)
        self.cgroup_of = dict.fromkeys({*sum(families, ()), *others}, folder)

    def family(self, _pid):
        return self.families.pop(0) if len(self.families) > 1 else self.families[0]

    def write(self, path, text):
        if path.name == "cgroup.procs":
            self.cgroup_of[int(text)] = path.parent
            return int(text) != ENDED
        return path.name != "cgroup.subtree_control" or self.folder not in self.cgroup_of.values()


ENDED = 9


@pytest.fixture
def kernel(tree, monkeypatch):
    def simulate(*families, **options):
        kernel = Kernel(tree, *families, **options)
        monkeypatch.setattr(memory_limits, "_family", kernel.family)
        monkeypatch.setattr(memory_limits, "_write", kernel.write)
        return kernel

    return simulate


def test_process_that_is_forked_while_others_are_moved_is_moved_too(tree, kernel):
    simulated = kernel((1, 2), (1, 2, 3))

    assert limits_of(tree).cgroup == tree
    assert set(simulated.cgroup_of.values()) == {tree / f"studydb-worker-{os.getpid()}"}


def test_limits_work_although_a_process_ends_while_others_are_moved(tree, kernel):
    kernel((1, ENDED))

    assert limits_of(tree).cgroup == tree


def test_processes_of_a_worker_return_to_their_cgroup_if_other_programs_have_processes_in_it(
    tree, kernel
):
    simulated = kernel((1, 2), others=(7,))

    assert limits_of(tree).cgroup is None
    assert set(simulated.cgroup_of.values()) == {tree}


@pytest.mark.parametrize("lacks", ["controller", "rights", "version 2", "a cgroup"])
def test_worker_that_cannot_make_cgroups_limits_each_process(tree, lacks):
    match lacks:
        case "controller":
            make(tree, controllers="cpu", enabled="")
        case "rights":
            (tree / "cgroup.subtree_control").unlink()
        case "version 2":
            (tree.parent / "self").write_text("9:memory:/service\n")
        case "a cgroup":
            (tree.parent / "self").write_text("0::/elsewhere\n")

    limit = limits_of(tree).limit(2_000_000_000)

    assert limit.cgroup is None
    assert not limit.was_exceeded()
    limit.close()
    assert str(limit).startswith("each of its processes may use 2 GB")


def test_cgroup_that_cannot_be_limited_is_not_used(tree, monkeypatch):
    limits = limits_of(tree)
    monkeypatch.setattr("studydb.devices.memory_limits._write", lambda *_: False)
    monkeypatch.setattr("studydb.devices.memory_limits._PAUSE_S", 0.0)

    assert limits.limit(1).cgroup is None


@pytest.mark.parametrize(
    ("events", "exceeded"),
    [("max 9\noom_kill 0\n", False), ("oom_kill 1\n", True), ("", False), (None, False)],
)
def test_kill_because_of_the_memory_limit_is_distinguished_from_other_kills(tree, events, exceeded):
    limit = limits_of(tree).limit(1)
    if events is not None:
        (limit.cgroup / "memory.events").write_text(events)

    assert limit.was_exceeded() == exceeded


def test_close_kills_what_still_runs_in_the_cgroup_and_tries_again_to_remove_it(tree, monkeypatch):
    limit, tries, removed = limits_of(tree).limit(1), [], []

    def rmdir(path):
        tries.append((path / "cgroup.kill").read_text())
        if len(tries) < 3:
            raise OSError("busy")
        removed.append(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    monkeypatch.setattr("studydb.devices.memory_limits._PAUSE_S", 0.0)
    limit.close()

    assert tries == ["1"] * 3
    assert removed == [limit.cgroup]


def test_limiting_a_process_does_not_raise_its_existing_limit():
    code = (
        "import resource; from studydb.processes import limit_memory\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9)); limit_memory(2 * 10**9, None)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_AS))"
    )

    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)

    assert printed == f"{(10**9, 10**9)} {(-1, -1)}\n"
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == -1
    with pytest.raises(FileNotFoundError):
        limit_memory(1, "/nowhere")
