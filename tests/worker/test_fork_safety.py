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


NOT_INITIALIZED, SUCCESS = 3, 0
"""Status codes of the CUDA Driver API."""


@pytest.fixture
def host(monkeypatch, tmp_path):
    """
    Return a function that simulates a loaded libcuda and, if `card` is true, a card's device file.

    cuDeviceGetCount returns `status`. `visible` is CUDA_VISIBLE_DEVICES; None leaves it unset.
    """

    def make(status, *, visible="0", card=True):
        (tmp_path / ("nvidia3" if card else "nvidiactl")).touch()
        monkeypatch.setattr(fork_safety, "_DEVICE_FILES", tmp_path)
        monkeypatch.setattr(fork_safety, "mapped_files", lambda: {"/usr/lib/libcuda.so.1"})
        monkeypatch.setattr(fork_safety, "_device_count_status", lambda _: status)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


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
def test_initialized_cuda_forbids_a_fork_if_a_gpu_is_present_and_visible(
    host, visible, card, forbidden
):
    host(SUCCESS, visible=visible, card=card)

    assert (fork_safety._device() is not None) == forbidden


@pytest.mark.parametrize("uses_devices", [False, True])
def test_process_that_has_only_loaded_libcuda_may_be_forked(host, uses_devices):
    host(NOT_INITIALIZED)

    assert fork_safety._device(uses_devices=uses_devices) is None


@pytest.mark.parametrize("is_loaded", [False, True])
def test_libcuda_that_cannot_be_called_counts_as_initialized(monkeypatch, is_loaded):
    loaded = next(path for path in fork_safety.mapped_files() if ".so" in path)
    path = loaded if is_loaded else "/no/such/libcuda.so.1"
    monkeypatch.setattr(fork_safety, "_CUDA_LIBRARY", path)
    monkeypatch.setattr(fork_safety, "mapped_files", lambda: {path})

    assert fork_safety._device(uses_devices=True) is not None


@pytest.mark.nightly
@pytest.mark.parametrize(
    "module",
    [
        "numpy",
        "numpy.linalg",
        "sklearn.neural_network",
        "pandas",
        pytest.param("pyarrow", marks=pytest.mark.oracle),
    ],
)
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
