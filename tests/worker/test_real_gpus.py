"""
Trials on a real NVIDIA GPU; pytest runs these tests only with the option `-m gpu`.

The tests need `nvidia-smi`, libcuda, and a card that no other process uses. The test of PyTorch is
skipped if PyTorch is not installed.
"""

import importlib.util
import textwrap

import pytest
from fleet.workers import eventually
from harness.child_messages import metrics_of

from studydb.devices import Devices, nvidia_smi
from studydb.domain.trainable import Trainable, TrainableKind

pytestmark = pytest.mark.gpu

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)

CARDS = """
import ctypes, os, time

def cards():
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) in (0, 100)  # 100: no device
    n, found = ctypes.c_int(), []
    if cuda.cuDeviceGetCount(ctypes.byref(n)):
        return []
    for index in range(n.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
        assert cuda.cuDeviceGetUuid(uuid, device) == 0
        digits = bytes(uuid).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        found.append("GPU-" + "-".join(parts))
    return found
"""


@pytest.fixture
def devices(tmp_path):
    devices = Devices.of("auto", {"STUDYDB_LOCK_DIR": str(tmp_path)})
    assert devices.offered(), "this host has no GPU: nvidia-smi -L lists none"
    return devices


@pytest.fixture
def module(tmp_path):
    """
    Return a function that writes a module and returns the module's `train` as a trainable.

    The module has the code of `CARDS`, and the source that is given.
    """

    def write(source, name="mine"):
        (tmp_path / f"{name}.py").write_text(CARDS + textwrap.dedent(source))
        return Trainable("u", TrainableKind.IMPORT, f"{name}:train", str(tmp_path), "3.11")

    return write


@pytest.fixture
def start_with(start):
    def start_with(trainable, grant, **job):
        attempt = start(
            trainable, environment=grant.environment(), descriptors=grant.descriptors, **job
        )
        grant.run_by(attempt.child.process.pid)
        return attempt

    return start_with


LOOK = """
    def train(config):
        return {"loss": 1.0, "cards": ",".join(cards())}
"""


def test_trial_sees_its_card_and_no_other(start_with, devices, module):
    grant = devices.take(1)

    assert metrics_of(start_with(module(LOOK), grant))["cards"] == grant.names[0]
    assert grant.release() is None


def test_trial_without_a_card_sees_none(start_with, devices, module):
    assert metrics_of(start_with(module(LOOK), devices.take(0)))["cards"] == ""


USE = """
    import studydb

    def train(config):
        cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuInit(0)
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)) == 0
        studydb.report({"loss": 1.0})
        time.sleep(60)
"""


def test_two_trials_share_a_card_and_give_its_memory_back(start_with, devices, module):
    halves = [devices.take(0.5), devices.take(0.5)]
    attempts = [start_with(module(USE), half) for half in halves]
    for attempt in attempts:
        assert attempt.receive().result.value == 1.0
    pids = {attempt.child.process.pid for attempt in attempts}

    assert halves[0].names == halves[1].names
    assert sum(devices.free_parts()) == len(devices.offered()) - 1
    eventually(
        lambda: pids <= {pid for _, pid in nvidia_smi.list_users()}, what="use by both trials"
    )
    for attempt, half in zip(attempts, halves, strict=True):
        attempt.child.kill()
        attempt.child.wait()
        assert half.release() is None
    assert not pids & {pid for _, pid in nvidia_smi.list_users()}
    assert sum(devices.free_parts()) == len(devices.offered())


@pytest.mark.parametrize(
    "case",
    [
        ("pass", "warm"),
        ("CUDA = ctypes.CDLL('libcuda.so.1')", "warm"),
        ("FOUND = cards()", "fresh"),
    ],
)
def test_template_is_used_only_if_it_has_not_initialized_cuda(
    start_with, devices, module, warm, case
):
    line, expected = case
    trainable = module(f"{line}\n" + textwrap.dedent(LOOK) + "train.studydb_start = 'warm'\n")
    warm.templates.allow_devices(trainable)
    grant = devices.take(1)

    assert metrics_of(start_with(trainable, grant, server=warm))["cards"] == grant.names[0]
    assert warm.starts == [expected]


@needs_torch
def test_trial_of_pytorch_sees_only_its_card_and_starts_warm(start_with, devices, module, warm):
    trainable = module(
        """
        import torch

        def train(config):
            ones = torch.ones(1000, device="cuda")
            return {"loss": 1.0, "sum": float(ones.sum()), "n": torch.cuda.device_count()}

        train.studydb_start = "warm"
        """
    )
    warm.templates.allow_devices(trainable)

    for _ in range(2):
        grant = devices.take(1)
        metrics = metrics_of(start_with(trainable, grant, server=warm))
        assert (metrics["sum"], metrics["n"]) == (1000.0, 1)
        assert grant.release() is None

    assert warm.starts == ["warm", "warm"], warm.printed
