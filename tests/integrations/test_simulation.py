"""`simulate` runs schedulers and searchers on recorded curves, with the operations of workers."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from harness.curve_reader import CURVES, recorded_curves
from harness.documented_code import names_defined_in

import studydb
from studydb.analysis.recorded_curves import Curve, RecordedCurves, read_curves
from studydb.domain.errors import InvalidSpec, NotAllowed

NOISY = Path(CURVES).with_name("noisy_digits_curves.json")

SCHEDULERS = {
    "FIFO": studydb.FIFO(),
    "stopping": studydb.ASHA(max_t=27, reduction_factor=3),
    "promotion": studydb.ASHA(max_t=27, reduction_factor=3, type="promotion"),
    "HyperBand": studydb.HyperBand(max_t=27),
}

every_scheduler = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)


@every_scheduler
def test_no_step_is_trained_after_the_decision_to_stop_or_pause_its_trial(scheduler):
    simulated = studydb.simulate(scheduler, None, CURVES, seed=3, num_trials=40)

    assert simulated.status == "FINISHED"
    assert simulated.n_after_decision == simulated.n_again == 0
    assert simulated.n_steps == sum(trial.n_steps for trial in simulated.trials)
    assert simulated.best_value == min(one.value for one in simulated.completions)
    assert simulated.regret == pytest.approx(simulated.best_value - simulated.optimum)


@pytest.mark.slow
@pytest.mark.sampled(2)
@every_scheduler
@pytest.mark.parametrize("kills", [0.0, 0.1])
def test_simulations_with_the_same_arguments_are_equal(scheduler, kills):
    options = {"seed": 5, "num_trials": 20, "kills": kills}
    first = studydb.simulate(scheduler, None, CURVES, **options)

    assert studydb.simulate(scheduler, None, CURVES, **options) == first
    assert studydb.simulate(scheduler, None, CURVES, **options | {"seed": 6}) != first


@pytest.mark.slow
def test_simulations_with_the_same_model_searcher_are_equal_and_use_each_curve_once():
    searcher = studydb.OptunaSearch("TPESampler", n_startup_trials=4)
    options = {"seed": 1, "num_trials": 16, "max_steps": 120}
    first = studydb.simulate(SCHEDULERS["stopping"], searcher, CURVES, **options)

    assert studydb.simulate(SCHEDULERS["stopping"], searcher, CURVES, **options) == first
    assert len({trial.curve for trial in first.trials}) == len(first.trials)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FIFO", "stopping", "promotion"])
def test_one_simulated_worker_does_what_an_own_loop_does(storage_url, name):
    curves, n_trials, seed = recorded_curves(), 15, 2
    order = random.Random(seed).sample(range(len(curves)), len(curves))
    study = studydb.create_study(
        f"own-{name}",
        None,
        metric="error",
        mode="min",
        num_trials=n_trials,
        scheduler=SCHEDULERS[name],
        searcher=studydb.RandomSearch(seed=seed),
        storage=storage_url,
    )
    began = []
    while (trial := study.ask()) is not None:
        began.append((trial.number, trial.start_step))
        values = curves[order[trial.number]]
        for step in range(trial.start_step + 1, len(values) + 1):
            report = {"error": values[step - 1], "done": step == len(values)}
            if not trial.report(report, checkpoint={}):
                break
    ended = [
        (one.number, one.state, one.reason, one.summary.last_step, one.value, one.bracket)
        for one in study.trials
    ]
    study.close()

    simulated = studydb.simulate(
        SCHEDULERS[name], None, CURVES, workers=1, seed=seed, num_trials=n_trials
    )

    assert [
        (one.number, one.state, one.reason, one.last_step, one.value, one.bracket)
        for one in simulated.trials
    ] == ended
    assert len(began) >= n_trials


def test_curves_of_a_finished_study_are_those_of_trials_that_were_trained_to_their_end(storage_url):
    study = studydb.create_study(
        "finished",
        None,
        space={"lr": studydb.loguniform(1e-4, 1)},
        metric="accuracy",
        mode="max",
        num_trials=4,
        storage=storage_url,
    )
    for number in range(4):
        trial = study.ask()
        for step in range(1, 4):
            trial.report({"accuracy": number + step / 10, "training_iteration": 10 * step})
        if number == 2:
            trial.fail(ValueError("not whole"))
        else:
            trial.finish()
    study.invalidate(3, reason="wrong data")

    simulated = studydb.simulate(studydb.FIFO(), None, study, step_s=2.0)
    by_searcher = studydb.simulate(studydb.FIFO(), studydb.RandomSearch(), study)
    recorded = RecordedCurves.of_study(study.database, study.record)
    known = {trial.number: trial.params for trial in study.trials}
    study.close()

    assert {trial.value for trial in simulated.trials} == {0.3, 1.3}
    assert simulated.best_value == simulated.optimum == 1.3
    assert (simulated.n_steps, simulated.duration_s) == (6, 6.0)
    assert sorted(trial.last_step for trial in simulated.trials) == [30, 30]
    assert [curve.params for curve in recorded.curves] == [known[0], known[1]]
    assert {trial.curve for trial in by_searcher.trials} == {0, 1}
    assert (recorded.n_left_out, simulated.status) == (1, "FINISHED")


def test_curves_of_a_study_leave_out_clones_enqueued_checkpoints_and_changed_trials(storage_url):
    given = {"metric": "loss", "mode": "min", "storage": storage_url}
    space = {"lr": studydb.uniform(0, 1)}
    study = studydb.create_study("finished", None, space=space, num_trials=4, **given)

    with study.ask() as trial:
        whole = trial.params
        for _ in range(3):
            trial.report({"loss": 1.0}, checkpoint={})
    failed = study.ask()
    failed.report({"loss": 2.0}, checkpoint={})
    failed.fail(ValueError("node"))
    study.retry(failed.number)
    study.enqueue({"lr": 0.25}, checkpoint={"a": 1}, checkpoint_step=2)
    study.resume(study.enqueue({"lr": 0.75}), lr=0.5)
    for _ in range(3):
        with study.ask() as trial:
            trial.report({"loss": 3.0})
    recorded = RecordedCurves.of_study(study.database, study.record)
    study.close()

    assert [(curve.params, curve.steps) for curve in recorded.curves] == [(whole, (1, 2, 3))]
    assert recorded.n_left_out == 4


def test_nearest_curve_is_found_in_a_space_whose_bounds_have_an_infinite_quotient():
    space = {"lr": studydb.loguniform(1e-200, 1e150)}
    curves = {(("lr", 10.0**power),): [1.0] for power in range(-200, 151, 50)}
    by_curve = [dict(params)["lr"] for params in curves]

    simulated = studydb.simulate(None, studydb.RandomSearch(), curves, space=space)

    first = simulated.trials[0]
    nearest = min(by_curve, key=lambda lr: abs(math.log(lr) - math.log(first.params["lr"])))
    assert by_curve[first.curve] == nearest


def test_trial_of_a_searcher_gets_the_nearest_curve_among_those_that_no_other_trial_has():
    space = {"lr": studydb.loguniform(1e-4, 1), "kind": studydb.choice(["a", "b"])}
    curves = {
        (("lr", 10.0**-power), ("kind", kind)): [power / 10]
        for power in range(5)
        for kind in ("a", "b")
    }
    by_curve = [dict(params) for params in curves]

    simulated = studydb.simulate(None, studydb.RandomSearch(), curves, space=space)

    taken = [trial.curve for trial in simulated.trials]
    assert sorted(taken) == list(range(10))
    first = simulated.trials[0]
    nearest = min(
        (one for one in by_curve if one["kind"] == first.params["kind"]),
        key=lambda one: abs(math.log(one["lr"] / first.params["lr"])),
    )
    assert by_curve[first.curve] == nearest


def test_promoted_trial_without_a_checkpoint_trains_its_steps_again():
    scheduler = SCHEDULERS["promotion"]
    saving = studydb.simulate(scheduler, None, CURVES, num_trials=12)
    losing = studydb.simulate(scheduler, None, CURVES, num_trials=12, saves=False)

    assert saving.n_again == 0 < losing.n_again
    assert losing.n_steps - losing.n_again <= 12 * 27
    assert losing.n_after_decision == 0


def test_simulated_duration_is_the_sum_of_the_times_of_starts_and_steps():
    simulated = studydb.simulate(
        None, None, [[3, 2], [5, 4, 1]], workers=1, step_s=lambda _, step: step, start_s=10
    )

    assert simulated.duration_s == (10 + 1 + 2) + (10 + 1 + 2 + 3)
    assert {(one.time_s, one.value) for one in simulated.completions} in (
        {(13, 2), (29, 1)},
        {(16, 1), (29, 2)},
    )
    assert simulated.regret_at(5) is None
    assert simulated.regret_at(29) == 0


def test_each_idle_worker_resumes_a_trial_as_soon_as_a_report_allows_it():
    scheduler = studydb.ASHA(max_t=9, reduction_factor=3, type="promotion")
    curves = [
        {"params": {"first_s": first_s}, "values": [value] * 9}
        for first_s, value in ((1, 1), (2, 5), (3, 5), (4, 5))
    ]

    simulated = studydb.simulate(
        scheduler,
        None,
        curves,
        max_steps=1000,  # because of this limit, idle workers look for a trial after each report
        time_limit_s=5.6,
        step_s=lambda params, step: params["first_s"] if step == 1 else 1.5,
    )

    # At 2 s the trial with value 1 is resumed. When it reports at 3.5 s, the end game has begun, so
    # two trials with value 5 are resumed. At 4 s the third trial with value 5 is resumed.
    assert simulated.n_steps == 4 + 2 + 3


def test_no_step_begins_after_max_steps_and_no_step_ends_after_the_time_limit():
    by_steps = studydb.simulate(None, None, CURVES, max_steps=70, step_s=1)
    by_time = studydb.simulate(None, None, CURVES, time_limit_s=30.5, step_s=1)

    assert (by_steps.n_steps, by_steps.status) == (70, "STOPPED")
    assert (by_time.n_steps, by_time.duration_s, by_time.status) == (4 * 30, 30, "STOPPED")
    assert not {"RUNNING", "PENDING"} & {one.state for one in (*by_steps.trials, *by_time.trials)}


@pytest.mark.slow
def test_trials_of_killed_workers_are_recovered_and_trained_to_their_end():
    simulated = studydb.simulate(None, None, CURVES, num_trials=10, kills=0.05, step_s=10)
    lost = studydb.simulate(None, None, CURVES, num_trials=10, kills=0.05, step_s=10, saves=False)

    assert simulated.n_kills > 0 < lost.n_kills
    assert {trial.reason for trial in simulated.trials} == {"COMPLETED"}
    assert (simulated.n_after_decision, simulated.n_again, simulated.n_steps) == (0, 0, 270)
    assert lost.n_again > 0 == lost.n_after_decision
    assert simulated.duration_s > 90  # a lost trial waits until its lease has ended


def test_nan_is_never_best():
    simulated = studydb.simulate(
        studydb.ASHA(max_t=3, reduction_factor=2), None, [[1, math.nan, math.nan], [2, 2, 2]]
    )

    assert simulated.best_value == simulated.optimum == 2


def test_infinity_is_better_than_nan():
    simulated = studydb.simulate(None, None, [[1, math.nan], [2, math.inf], [3, math.nan]])

    assert simulated.best_value == simulated.optimum == math.inf


def test_curve_without_params_has_empty_params():
    assert Curve((1.0, 0.5), (1, 2)).params == {}


def test_higher_values_are_better_if_the_mode_is_max():
    simulated = studydb.simulate(None, None, [[1, 5], [2, 3]], mode="max", metric="accuracy")

    assert (simulated.best_value, simulated.optimum, simulated.regret) == (5, 5, 0)


def test_frames_have_a_row_per_trial_and_per_completion():
    pytest.importorskip("pandas")
    simulated = studydb.simulate(SCHEDULERS["stopping"], None, NOISY, num_trials=9)

    trials, completions = simulated.trials_dataframe(), simulated.completions_dataframe()

    assert list(trials["number"]) == list(range(9))
    assert {"lr", "dropout", "schedule", "n_steps", "reason"} < set(trials.columns)
    assert trials["n_steps"].sum() == simulated.n_steps
    assert list(completions["regret"]) == sorted(completions["regret"], reverse=True)


def test_curves_that_are_written_to_a_file_are_read_back_unchanged(tmp_path):
    curves = replace(read_curves(NOISY), n_left_out=0)
    path = tmp_path / "curves.json"
    path.write_text(json.dumps(curves.to_json()))

    assert read_curves(path) == curves


def test_key_of_values_may_be_the_metrics_name_and_key_of_params_may_be_config(tmp_path):
    path = tmp_path / "curves.json"
    path.write_text('{"curves": [{"config": {"lr": 0.1}, "error": [0.5, NaN]}]}')

    (curve,) = read_curves(path).curves

    assert read_curves(path).objective.metric == "error"
    assert (curve.params, curve.steps) == ({"lr": 0.1}, (1, 2))
    assert math.isnan(curve.values[1])


@pytest.mark.parametrize(
    ("curves", "options", "message"),
    [
        ([], {}, "There are no curves"),
        ([[]], {}, "Curve 0 is []"),
        ([[1, "x"]], {}, "one or more numbers"),
        (3, {}, "give a study"),
        ([3], {}, "Curve 0 is 3"),
        ([{"params": {}}], {}, "neither 'values' nor"),
        ([{"values": [1, 2], "steps": [2, 2]}], {}, "ascending"),
        ([{"values": [1], "steps": ["1"]}], {}, "ascending"),
        ([{"values": [1], "step_s": -1}], {}, "seconds of a step"),
        ([{"values": 0.5}], {}, "Curve 0 is 0.5; give a list"),
        ([{"values": [1], "steps": 3}], {}, "Curve 0's `steps` is 3; give a list"),
        ([{"values": [1], "params": 3}], {}, "has the parameters 3; give a dict"),
        ({0.1: [1]}, {}, "has the parameters 0.1; give a dict"),
        ({"a": [1]}, {}, "has the parameters 'a'; give a dict"),
        ({("lr", "wd"): [1]}, {}, "give a dict"),
        ({((1, 2),): [1]}, {}, "give a dict"),
        ([{"values": [1], "params": 0}], {}, "has the parameters 0; give a dict"),
        ([{"values": [1, 2], "steps": [0.5, 1.5]}], {}, "1 or more, in ascending order"),
        ([{"values": [1], "steps": [2**70]}], {}, "1 or more, in ascending order"),
        ([[10**400]], {}, "too large for a double"),
        ([{1: 2, "a": 3}], {}, "its keys are ['1', 'a']"),
        ("nowhere.json", {}, "Cannot read"),
        ([[1]], {"num_trials": 2}, "there are 1 curves"),
        ([[1]], {"workers": 0}, "workers is 0"),
        ([[1]], {"kills": 1}, "probability"),
        ([[1]], {"step_s": math.nan}, "number of seconds"),
        ([[1]], {"step_s": lambda *_: -1}, "number of seconds"),
        ([[1]], {"scheduler": studydb.ASHA}, "give an object"),
        ([[1]], {"searcher": studydb.RandomSearch()}, "needs a space"),
        (
            [{"values": [1], "params": {"lr": 7}}],
            {"searcher": studydb.RandomSearch(), "space": {"lr": studydb.uniform(0, 1)}},
            "curve 0 do not fit",
        ),
    ],
)
def test_wrong_arguments_are_refused(curves, options, message):
    given = {"scheduler": None, "searcher": None} | options

    with pytest.raises(InvalidSpec, match=message.replace("[", r"\[")):
        studydb.simulate(curves=curves, **given)


def test_study_without_a_trial_that_was_trained_to_its_end_is_refused(storage_url):
    study = studydb.create_study(
        "empty", None, metric="loss", mode="min", num_trials=1, storage=storage_url
    )

    with pytest.raises(
        NotAllowed, match="no trial that was trained from the first step to its end"
    ):
        studydb.simulate(None, None, study)

    study.close()


@pytest.mark.nightly
def test_documented_example_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    names = names_defined_in("simulation.md")

    assert set(names["found"]) == {"random search", "ASHA, stopping", "ASHA, promotion"}


@pytest.mark.parametrize(("kills", "seed"), [(0.1, 2), (0.2, 0)])
def test_trials_of_killed_workers_are_recovered_before_a_simulation_ends(kills, seed):
    simulated = studydb.simulate(None, None, [[1.0] * 9] * 8, seed=seed, kills=kills)

    assert {trial.state for trial in simulated.trials} <= {"TERMINATED", "ERROR"}


def test_simulation_with_kills_ends_at_a_limit():
    simulated = studydb.simulate(None, None, [[1.0] * 9] * 20, max_steps=100, kills=0.3, seed=0)

    assert (simulated.status, simulated.n_steps) == ("STOPPED", 100)
