"""Worker processes: which resources they offer, which their trials hold, which trials they skip."""

from uuid import uuid4

import pytest
from fleet.workers import eventually

from studydb.devices import Devices


@pytest.fixture
def gpu():
    """Return a new prefix for names of GPUs, because all tests share the host's lock files."""
    return f"GPU-{uuid4().hex[:8]}"


def seen(stage):
    path = stage.folder / "seen"
    return sorted(path.read_text().split()) if path.exists() else []


def devices(stage, n):
    """
    Find the devices of completed attempts.

    The other attempts got no device, and so gave their trials back.
    """
    return sorted(
        name
        for number in range(n)
        for one in stage.attempts(number)
        if one.reason == "COMPLETED"
        for name in one.devices or ["none"]
    )


@pytest.mark.slow
@pytest.mark.row("C10")
def test_trials_that_run_together_see_different_gpus(stage, gpu):
    given = {"CUDA_VISIBLE_DEVICES": f"{gpu}-a,{gpu}-b"}
    stage.create("sharing:look", num_trials=3, resources={"gpus": 1})
    worker = stage.start(slots=3, environment=given)

    eventually(lambda: len(seen(stage)) == 2)
    assert seen(stage) == [f"{gpu}-a", f"{gpu}-b"]
    stage.open_gate(1)

    assert worker.exit_code(60.0) == 0
    assert set(devices(stage, 3)) == {f"{gpu}-a", f"{gpu}-b"}


@pytest.mark.slow
def test_two_trials_with_half_a_gpu_each_run_together(sqlite_stage, gpu):
    given = {"CUDA_VISIBLE_DEVICES": gpu}
    sqlite_stage.create("sharing:look", num_trials=3, resources="gpus=0.5")
    worker = sqlite_stage.start(slots=3, environment=given)

    eventually(lambda: len(seen(sqlite_stage)) == 2)
    sqlite_stage.open_gate(1)

    assert worker.exit_code(60.0) == 0
    assert seen(sqlite_stage) == [gpu] * 3


@pytest.mark.nightly
@pytest.mark.row("C10")
def test_two_workers_of_a_host_share_its_gpus(sqlite_stage, gpu):
    given = {"CUDA_VISIBLE_DEVICES": f"{gpu}-a,{gpu}-b,{gpu}-c"}
    sqlite_stage.create("sharing:look", num_trials=6, resources="gpus=1")
    workers = [sqlite_stage.start(slots=3, environment=given) for _ in range(2)]

    eventually(lambda: len(seen(sqlite_stage)) == 3)
    assert seen(sqlite_stage) == [f"{gpu}-a", f"{gpu}-b", f"{gpu}-c"]
    sqlite_stage.open_gate(1)

    assert [worker.exit_code(60.0) for worker in workers] == [0, 0]
    assert {row.losses for row in map(sqlite_stage.trial, range(6))} == {0}


@pytest.mark.nightly
def test_whole_gpus_and_halves_start_beside_a_half_that_another_process_holds(
    sqlite_stage, gpu, tmp_path
):
    half, whole = f"{gpu}-a", f"{gpu}-b"
    given = {"CUDA_VISIBLE_DEVICES": f"{half},{whole}", "STUDYDB_LOCK_DIR": str(tmp_path)}
    held = Devices.of("auto", given).take(0.5)
    study = sqlite_stage.create("sharing:look", num_trials=3, searcher=None)
    for gpus in (1, 0.5, 0.5):
        study.enqueue({}, resources={"gpus": gpus})

    worker = sqlite_stage.start(slots=3, environment=given)

    eventually(lambda: len(seen(sqlite_stage)) == 2)
    assert seen(sqlite_stage) == [half, whole]
    assert held.names == (half,)
    sqlite_stage.open_gate(1)
    assert worker.exit_code(60.0) == 0
    assert devices(sqlite_stage, 1) == [whole]
    held.release()


@pytest.mark.nightly
def test_a_worker_without_a_required_tag_does_not_start(sqlite_stage):
    sqlite_stage.create("sharing:look", require=["a100"])

    worker = sqlite_stage.start()

    assert worker.exit_code(60.0) == 2
    assert "start the worker with --tag a100" in " ".join(worker.output().split())


def test_a_worker_with_a_required_tag_runs_the_study(sqlite_stage):
    sqlite_stage.create("sharing:look", require=["a100"])
    sqlite_stage.open_gate(1)

    assert sqlite_stage.run(tag="a100") == 0


@pytest.mark.slow
@pytest.mark.row("A6")
def test_worker_leaves_a_trial_that_does_not_fit_and_status_says_so(sqlite_stage):
    study = sqlite_stage.create("sharing:look", num_trials=2, searcher=None)
    study.enqueue({}, resources={"licence": 2, "cpus": 1})
    study.enqueue({}, resources={"licence": 1})
    sqlite_stage.open_gate(1)
    worker = sqlite_stage.start(resource="licence=1", cpus=4)

    eventually(lambda: sqlite_stage.trial(1).state == "TERMINATED")
    eventually(lambda: "no trial can start on this worker now" in worker.output())

    text = " ".join(sqlite_stage.command("status", "staged").split())
    assert sqlite_stage.trial(0).state == "PENDING"
    assert "Trial 0 fits no live worker: it asks for cpus=1, licence=2; the nearest offer" in text


@pytest.mark.parametrize("option", [{"cpus": -1}, {"resource": "gpus=1"}, {"tag": " a"}])
def test_a_wrong_offer_is_refused(sqlite_stage, option):
    sqlite_stage.create("sharing:look")

    worker = sqlite_stage.start(**option)

    assert worker.exit_code(60.0) == 2
    assert "Traceback" not in worker.output()
