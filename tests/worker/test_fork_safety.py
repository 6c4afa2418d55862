"""A process whose imports opened an accelerator is not forked; the tests simulate accelerators."""

import subprocess
import sys

import pytest

from studydb.child import fork_safety


@pytest.mark.parametrize(
    "path", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128"]
)
def test_open_accelerator_device_forbids_a_fork(monkeypatch, path):
    monkeypatch.setattr(fork_safety, "mapped_files", lambda: {"/usr/lib/libc.so.6", path})

    assert fork_safety._device() == f"the import has opened the device {path}"


@pytest.mark.parametrize(
    ("visible", "card", "forbidden"),
    [
        (None, True, True),
        ("0", True, True),
        ("", True, False),
        ("-1", True, False),
        ("0", False, False),
    ],
)
def test_loaded_libcuda_forbids_a_fork_if_a_gpu_is_present_and_visible(
    monkeypatch, tmp_path, visible, card, forbidden
):
    (tmp_path / ("nvidia3" if card else "nvidiactl")).touch()
    monkeypatch.setattr(fork_safety, "_DEVICE_FILES", tmp_path)
    monkeypatch.setattr(fork_safety, "mapped_files", lambda: {"/usr/lib/libcuda.so.1"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert (fork_safety._device() is not None) == forbidden


@pytest.mark.parametrize("module", ["numpy", "numpy.linalg", "sklearn.neural_network", "pandas"])
def test_import_of_a_common_library_allows_a_fork(module):
    script = (
        "from studydb.child import fork_safety\n"
        "before = fork_safety.take_snapshot()\n"
        f"import {module}\n"
        "print(fork_safety.reason_against(before))\n"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert found.stdout == "None\n", found.stderr
