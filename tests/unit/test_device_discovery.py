"""Which devices a worker offers, how a trial learns of its devices, and how they are locked."""

from pathlib import Path

import pytest
from harness.fake_nvidia_smi import INSTANCES, UUIDS, FakeNvidiaSmi
from harness.refusal import check_refused

from studydb.devices import Devices, discovery, families, nvidia_smi
from studydb.devices.families import FAMILIES, family_here
from studydb.domain.errors import UsageError

A, B, C, D = UUIDS


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """A worker's environment, without a variable that names devices; `tmp_path` replaces /dev."""
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(families, "Path", lambda path: tmp_path / Path(path).name)
    return {"STUDYDB_LOCK_DIR": str(tmp_path / "locks")}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    fake = FakeNvidiaSmi(tmp_path)
    monkeypatch.setenv("PATH", fake.environment["PATH"])
    return fake


@pytest.fixture
def no_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


def offered(environ, asked="auto", **variables):
    return Devices.of(asked, environ | variables).offered()


def test_inherited_entries_are_offered_verbatim_and_in_order(environ, smi):
    assert offered(environ, CUDA_VISIBLE_DEVICES=f"2,{A},GPU-bbbbbbbb") == ("2", A, "GPU-bbbbbbbb")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("NoDevFiles", ()),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
        ("1,9,0", ("1",)),
        ("GPU-ffffffff,0", ()),
        ("all", ()),
        ("0,0,1", ("0", "1")),
        (" 1, 0", ("1", "0")),
    ],
)
def test_variable_offers_each_entry_once_up_to_the_first_invalid_entry(environ, smi, value, left):
    assert offered(environ, CUDA_VISIBLE_DEVICES=value) == left


def test_worker_without_a_variable_offers_all_cards_by_uuid(environ, smi):
    assert offered(environ) == UUIDS


def test_worker_in_a_batch_job_offers_only_gpus_named_by_its_option_or_inherited(environ, smi):
    assert offered(environ, SLURM_JOB_ID="7") == ()
    assert offered(environ, "0,1", SLURM_JOB_ID="7") == ("0", "1")
    assert offered(environ, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="1") == ("1",)


def test_card_with_mig_instances_is_offered_as_its_instances(environ, smi):
    smi.list_cards(A, B, instances=INSTANCES)

    assert offered(environ) == (A, *INSTANCES)


def test_host_without_nvidia_smi_offers_only_inherited_entries(environ, no_smi):
    assert offered(environ) == ()
    assert offered(environ, CUDA_VISIBLE_DEVICES="0,1") == ("0", "1")


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexec sleep 60\n", "#!/bin/sh\nexit 9\n", "no script"]
)
def test_nvidia_smi_that_hangs_or_fails_counts_as_missing(environ, smi, monkeypatch, script):
    monkeypatch.setattr(nvidia_smi, "TIMEOUT_S", 0.2)
    smi.install(script)

    assert offered(environ) == ()


def test_gpus_none_offers_nothing_and_does_not_set_the_variable_of_trials(environ, smi):
    devices = Devices.of("none", environ | {"CUDA_VISIBLE_DEVICES": "0"})

    assert devices.offered() == ()
    assert devices.take(0).environment() == {}
    assert devices.take(1) is None
    assert sum(devices.free_parts()) == 0


def test_typed_indices_also_set_cuda_device_order(environ, smi):
    grant = Devices.of("3,1", environ).take(2)

    assert grant.environment() == {
        "CUDA_VISIBLE_DEVICES": "3,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


@pytest.mark.parametrize(
    ("asked", "variables"), [(f"{A}", {}), ("auto", {}), ("auto", {"CUDA_VISIBLE_DEVICES": "0"})]
)
def test_cuda_device_order_is_not_set_unless_indices_were_typed(environ, smi, asked, variables):
    grant = Devices.of(asked, environ | variables).take(1)

    assert list(grant.environment()) == ["CUDA_VISIBLE_DEVICES"]


def test_typed_devices_must_be_among_those_that_the_worker_was_given(environ, smi):
    given = {"CUDA_VISIBLE_DEVICES": f"{A},1"}

    assert offered(environ, "1", **given) == ("1",)
    assert offered(environ, "0", **given) == ("0",)
    environ |= given
    check_refused(["names 2", f"{A}, 1", "unset"], Devices.of, "2", environ, error=UsageError)


@pytest.mark.parametrize("value", ["", "NoDevFiles"])
def test_typed_device_is_refused_with_advice_to_unset_a_variable_that_gives_no_device(
    environ, smi, value
):
    words = ["gives this worker no device. Unset the variable, or give --gpus none."]

    check_refused(
        words, Devices.of, "0", environ | {"CUDA_VISIBLE_DEVICES": value}, error=UsageError
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("4", "fits no device"),
        ("GPU-ffffffff", "fits no device"),
        ("0,0", "twice"),
        (f"0,{A}", "twice"),
        ("0,", "neither an index nor a UUID"),
        ("two", "neither an index nor a UUID"),
    ],
)
def test_typed_device_that_is_wrong_is_refused(environ, smi, asked, words):
    check_refused(["--gpus", words], Devices.of, asked, environ, error=UsageError)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.variable)
def test_each_family_of_devices_is_handed_out_by_its_own_variable(environ, no_smi, family):
    devices = Devices.of("auto", environ | {family.variable: "3,1,5"})

    assert devices.offered() == ("3", "1", "5")
    first, second = devices.take(1), devices.take(2)
    assert first.environment() == {family.variable: "3"}
    assert second.environment() == {family.variable: "1,5"}
    assert devices.take(0).environment() == {family.variable: family.nothing}


@pytest.mark.parametrize(
    ("files", "variables", "chosen"),
    [
        ([], [], "CUDA_VISIBLE_DEVICES"),
        (["kfd"], [], "HIP_VISIBLE_DEVICES"),
        (["kfd", "dri"], ["CUDA", "ROCR", "ZE"], "ROCR_VISIBLE_DEVICES"),
        (["dri"], ["CUDA", "ROCR", "ZE"], "ZE_AFFINITY_MASK"),
        (["nvidiactl", "dri"], ["CUDA", "ROCR", "ZE"], "CUDA_VISIBLE_DEVICES"),
        (["nvidiactl"], ["HIP"], "HIP_VISIBLE_DEVICES"),
    ],
)
def test_one_family_is_chosen_by_the_variables_that_are_set_and_the_device_files_of_the_host(
    environ, tmp_path, files, variables, chosen
):
    for name in files:
        (tmp_path / name).touch()
    given = [one.variable for one in FAMILIES if one.variable.partition("_")[0] in variables]

    assert family_here(dict.fromkeys(given, "0,1")).variable == chosen


def test_index_and_uuid_of_a_card_have_one_lock(environ, smi):
    by_index, by_uuid = Devices.of("1", environ), Devices.of("GPU-bbbb", environ)

    grant = by_index.take(1)

    assert grant is not None
    assert by_uuid.take(1) is None


def test_lock_of_an_index_without_a_known_uuid_holds_only_within_one_batch_job(environ, no_smi):
    variables = environ | {"CUDA_VISIBLE_DEVICES": "0"}
    held = Devices.of("auto", variables).take(1)

    assert held is not None
    assert Devices.of("auto", variables).take(1) is None
    assert Devices.of("auto", variables | {"SLURM_JOB_ID": "7"}).take(1) is not None


def test_uuids_are_read_from_the_lines_of_nvidia_smi(smi):
    smi.list_cards(A, B, instances=INSTANCES)

    assert nvidia_smi.list_cards() == (
        nvidia_smi.Card(0, A),
        nvidia_smi.Card(1, B, INSTANCES),
    )
    assert discovery._all_of(nvidia_smi.list_cards())[1].card_lock == B
