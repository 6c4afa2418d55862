"""An own loop that offers resources gets only trials that fit the unused part of its offer."""

import gc
import threading
import warnings

import pytest

import studydb
from studydb.domain.errors import NotAllowed
from studydb.worker.cores import available_cores

SPACE = {"lr": studydb.uniform(0.0, 1.0)}


@pytest.fixture
def study(create_study, storage_url):
    """A study whose trials ask for a GPU, unless they are enqueued with other resources."""
    given = {"storage": storage_url, "space": SPACE, "num_trials": 9}
    return create_study("loop", None, resources="gpus=1", **given)


def put(study, *requests):
    return [study.enqueue({"lr": 0.5}, resources=one) for one in requests]


def test_an_own_loop_without_an_offer_gets_every_trial(study):
    put(study, "gpus=8", "licence=100", {})

    asked = [study.ask() for _ in range(3)]

    assert [trial.number for trial in asked] == [0, 1, 2]


def test_an_own_loop_gets_only_trials_that_fit_what_it_offers(study):
    put(study, "gpus=2", "gpus=1, licence=2", "gpus=1, licence=1")
    study.offer({"gpus": 1, "licence": 1})

    trial = study.ask(timeout=30)

    assert trial.number == 2


def test_trial_holds_what_it_asks_for_until_it_ends(study):
    put(study, "gpus=1", "gpus=1")
    study.offer("gpus=1")
    held = study.ask(timeout=30)

    with pytest.raises(TimeoutError):
        study.ask(timeout=0.3)
    held.report({"loss": 1.0})
    held.finish()

    assert study.ask(timeout=30).number == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["fail", "drop"])
def test_resources_of_a_trial_are_free_after_it_failed_or_was_given_back(study, end):
    put(study, "gpus=1", "gpus=1")
    study.offer("gpus=1")
    held = study.ask(timeout=30)

    if end == "fail":
        held.fail("no")
        assert study.ask(timeout=30).number in (0, 1)
        return
    del held  # the trial is given back, and can be claimed again
    gc.collect()
    with pytest.warns(UserWarning, match="dropped trial 0 before its end, .*will run again"):
        assert study.ask(timeout=30).number in (0, 1)


def test_threads_of_a_loop_share_what_it_offers(study):
    put(study, *["gpus=0.5"] * 6)
    study.offer("gpus=1")
    lock, n_held, most = threading.Lock(), 0, []

    def work():
        nonlocal n_held
        for _ in range(2):
            with study.ask(timeout=60) as trial:
                with lock:
                    n_held += 1
                    most.append(n_held)
                trial.report({"loss": 1.0})
                with lock:
                    n_held -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [row.state for row in study.trials[:6]] == ["TERMINATED"] * 6
    assert max(most) <= 2


def test_a_loop_warns_and_waits_if_no_trial_fits_its_offer(study):
    put(study, "gpus=4")
    study.set_resources("gpus=4")
    study.offer({"gpus": 1}, tags=["small"])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(TimeoutError):
            study.ask(timeout=0.5)

    (message,) = {str(each.message) for each in told}
    assert "No trial that can start now fits what this process offers (" in message
    assert "gpus=1" in message
    assert "`studydb status loop` says what trials ask for" in message


def test_the_view_of_workers_shows_what_a_loop_offers(study):
    put(study, "licence=1")
    study.offer({"licence": 2, "cpus": 3, "memory_gb": 1}, tags=["a100"])
    held = study.ask(timeout=30)

    with study.database.begin(write=False) as txn:
        _, ((resources, uses, tags),) = txn.raw("SELECT resources, uses, tags FROM v_worker")

    shown = " ".join(map(str, (resources, uses, tags)))
    assert held.number == 0
    for part in ("licence", "cpus", "a100"):
        assert part in shown


def test_cpus_and_memory_are_those_of_the_host_if_they_are_not_given(study):
    put(study, {"cpus": available_cores() + 1}, {"memory_gb": 10**6}, {"cpus": 1})
    study.offer({})

    assert study.ask(timeout=30).number == 2


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"gpus": 0.5}, "offers 0.5 gpus; give a whole number"),
        ({"gpu": 1}, "the name is 'gpus'"),
        ({"licence": -1}, "from 0 to"),
        ("much", "not NAME=AMOUNT"),
    ],
)
def test_a_wrong_offer_is_refused(study, resources, says):
    with pytest.raises(studydb.UsageError, match=says):
        study.offer(resources)


def test_an_offer_after_the_first_ask_is_refused(study):
    put(study, {}, {})
    trial = study.ask(timeout=30)

    with pytest.raises(NotAllowed, match="before the first ask"):
        study.offer("gpus=1")
    assert trial.report({"loss": 1.0})


def test_a_loop_must_have_the_tags_that_the_study_requires(create_study, storage_url):
    study = create_study(
        "tagged", None, storage=storage_url, space=SPACE, num_trials=2, require=["a100"]
    )

    with pytest.raises(NotAllowed, match=r"requires the tag 'a100'.* give tags=\['a100'\]"):
        study.offer({})

    study.offer({}, tags=["a100"])
    assert study.ask(timeout=30).number == 0
