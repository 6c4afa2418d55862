"""Short runs of `scripts/chaos poison`: no poisonous trial harms its worker or other trials."""

import pytest
from fleet import poison


@pytest.mark.nightly
def test_trials_with_poisonous_content_harm_no_worker_and_no_other_trial(storage_url, tmp_path):
    poisons = dict(enumerate(poison.ALL, start=1))

    n_trials = len(poison.ALL) + 3
    wrong = poison.run(storage_url, tmp_path, poisons, n_trials=n_trials, workers=2, preloaded=True)

    assert wrong == []


@pytest.mark.slow
def test_study_with_poisonous_trials_can_be_deleted_while_it_runs(storage_url, tmp_path):
    poisons = {0: "largest_double_twice", 1: "garbage_on_its_pipe", 2: "segfault"}

    wrong = poison.run(
        storage_url,
        tmp_path,
        poisons,
        n_trials=1000,
        workers=2,
        delete_early=True,
        preloaded=True,
    )

    assert wrong == []
