"""
The number of threads that BLAS and OpenMP may start in each trial.

Without a limit these libraries use all cores in every trial.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)


def thread_limits(environ: Mapping[str, str], *, parts: int) -> dict[str, str]:
    """
    Divide this process's cores among `parts` processes.

    Returns:
        Variables for the environment of each process, which limit each library to the process's
        share of the cores (at least 1); {} if the user has set any of the variables.
    """
    if any(environ.get(name) for name in THREAD_VARIABLES):
        return {}
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, available_cores() // parts)))


def available_cores(
    of_self: Path = Path("/proc/self/cgroup"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Count the cores that this process may use, by its affinity and the quotas of its cgroups."""
    if hasattr(os, "sched_getaffinity"):
        by_affinity = len(os.sched_getaffinity(0))
    else:
        by_affinity = os.cpu_count() or 1
    return max(1, min(by_affinity, *_quotas(of_self, cgroups)))


def _quotas(of_self: Path, cgroups: Path) -> list[int]:
    """Read the quotas of this process's cgroups, in whole cores; 2**30 stands for no limit."""
    found = [1 << 30]
    with suppress(OSError):
        for line in of_self.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                found += _quotas_of(cgroups, path, _quota_v2)
            elif "cpu" in controllers.split(","):
                found += _quotas_of(cgroups / "cpu", path, _quota_v1)
    return found


def _quotas_of(root: Path, path: str, quota: Callable[[Path], int]) -> list[int]:
    """Read the quotas of a cgroup and its parents; a container may lack some of the folders."""
    place = root / path.lstrip("/")
    found = []
    for folder in (place, *place.parents):
        with suppress(OSError, ValueError, ZeroDivisionError):
            found.append(quota(folder))
        if folder == root:
            break
    return found


def _quota_v2(folder: Path) -> int:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota) // int(period)  # "max" raises ValueError: no limit


def _quota_v1(folder: Path) -> int:
    quota_us = int((folder / "cpu.cfs_quota_us").read_text())
    if quota_us <= 0:
        raise ValueError("no limit")
    return quota_us // int((folder / "cpu.cfs_period_us").read_text())
