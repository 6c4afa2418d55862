"""A W&B sweep file becomes a study; a file that cannot become a study is refused."""

import sys

import pytest

import studydb
from studydb.domain.errors import InvalidSpec
from studydb.study.sweep_file import read_sweep

SWEEP = """
program: train.py
method: bayes
name: demo
metric: {name: val_loss, goal: minimize}
parameters:
  lr: {distribution: log_uniform_values, min: 0.0001, max: 0.1}
  batch_size: {values: [16, 32, 64]}
  dropout: {min: 0.1, max: 0.5}
  layers: {min: 1, max: 4}
  epochs: {value: 27}
  optimizer:
    parameters:
      momentum: {distribution: q_uniform, min: 0, max: 1, q: 0.1}
early_terminate: {type: hyperband, min_iter: 3, eta: 2}
run_cap: 12
"""


@pytest.fixture
def sweep(tmp_path):
    def write(text):
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_keys_of_a_sweep_file_become_arguments_of_a_study(sweep):
    read = read_sweep(sweep(SWEEP))

    space = read.pop("space")
    assert list(space.parameters) == ["lr", "batch_size", "dropout", "layers", "optimizer/momentum"]
    assert space.constants == {"epochs": 27}
    assert space.parameters["lr"] == studydb.loguniform(1e-4, 0.1)
    assert space.parameters["layers"] == studydb.randint(1, 4)
    assert space.parameters["optimizer/momentum"] == studydb.quniform(0, 1, 0.1)
    assert read == {
        "trainable": studydb.Command(["${env}", "${interpreter}", "train.py", "${args}"]),
        "searcher": studydb.OptunaSearch("TPESampler"),
        "metric": "val_loss",
        "mode": "min",
        "num_trials": 12,
        "scheduler": studydb.ASHA(max_t=10**9, grace_period=3, reduction_factor=2),
    }


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("{min: 10, max: 64, q: 16}", studydb.choice([16, 32, 48, 64])),
        ("{min: 16, max: 64}", studydb.randint(16, 64)),
        ("{min: 0, max: 1, q: 0.5}", studydb.quniform(0, 1, 0.5)),
        ("{min: 0.5, max: 3, q: 1}", studydb.quniform(0.5, 3, 1)),
    ],
)
def test_quantized_parameter_of_a_sweep_file_is_an_integer_if_its_bounds_and_step_are_integers(
    sweep, given, becomes
):
    text = f"command: [./train]\nparameters:\n  width: {{distribution: q_uniform, {given[1:]}\n"

    assert read_sweep(sweep(text))["space"].parameters["width"] == becomes


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("{max_iter: 27, s: 2}", studydb.ASHA(max_t=27, grace_period=3, reduction_factor=3)),
        ("{max_iter: 10, s: 1, eta: 4}", studydb.ASHA(max_t=10, grace_period=3)),
    ],
)
def test_hyperband_of_a_sweep_file_becomes_asha_with_its_steps_rounded_up(sweep, given, becomes):
    text = f"command: [./train]\nearly_terminate: {{type: hyperband, {given[1:]}\n"

    assert read_sweep(sweep(text))["scheduler"] == becomes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "the file is"),
        ("a: [", "is not YAML"),
        ("programm: x", "Did you mean 'program'"),
        ("method: grids\nprogram: x", "Did you mean 'grid'"),
        ("method: random", "needs .*program"),
        ("program: x\nparameters: {a: {min: 1}}", "neither value, values"),
        (
            "program: x\nparameters: {a: {distribution: normal, mu: 0}}",
            "a.distribution is 'normal'",
        ),
        ("program: x\nparameters: {a: {distribution: uniform, min: 0}}", "lacks 'max'"),
        ("program: x\nparameters: {a: {values: [1], probabilities: [1]}}", "probabilities"),
        ("program: x\nparameters: 3", "must be a mapping"),
        ("program: x\nmetric: {name: a, goal: low}", "metric.goal is 'low'"),
        ("program: x\nmethod: []", "method is"),
        ("program: x\n1: 2", "'1'"),
        (
            "program: x\nparameters: {a: {distribution: log_uniform, min: 0, max: 1000}}",
            "Parameter 'a': math range error",
        ),
        (
            "program: x\nparameters: {a: {min: 1e-4, max: 1}}",
            r"Parameter 'a': YAML reads min, '1e-4', as a text\. .* write 1\.0e-5, not 1e-5",
        ),
        (
            "program: x\nparameters: {a: {min: 0, max: one}}",
            "Parameter 'a': YAML reads max, 'one', as a text. Write a number",
        ),
        (
            "program: x\nparameters: {a: {min: 1, max: [2]}}",
            r"Parameter 'a': .* is \[2\]; it must be a number",
        ),
        ("program: x\nearly_terminate: {type: median}", "early_terminate.type"),
        ("program: x\nearly_terminate: {type: hyperband}", "neither min_iter nor max_iter"),
    ],
)
def test_sweep_file_that_cannot_become_a_study_is_refused(sweep, text, words):
    with pytest.raises(InvalidSpec, match=words):
        read_sweep(sweep(text))


def test_study_of_a_sweep_file_runs_its_program(bare_console, here, sqlite_url):
    (here / "train.py").write_text(
        "import argparse, json\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--x', type=float)\n"
        "parser.add_argument('--steps', type=int)\n"
        "arguments = parser.parse_args()\n"
        "for step in range(arguments.steps):\n"
        "    print('[studydb]', json.dumps({'loss': arguments.x / (step + 1)}), flush=True)\n"
    )
    (here / "sweep.yaml").write_text(
        "program: train.py\nmethod: grid\nmetric: {name: loss}\n"
        f"command: ['{sys.executable}', '${{program}}', '${{args_no_equals}}']\n"
        "parameters: {x: {values: [4.0, 2.0]}, steps: {value: 2}}\n"
    )

    bare_console("create", "swept", "--from", "sweep.yaml", "--storage", sqlite_url)
    bare_console("worker", "--study", "swept", "--storage", sqlite_url)

    assert studydb.load_study("swept", storage=sqlite_url).best_trial.value == 1.0


def test_metric_must_be_given_if_the_sweep_file_has_none(bare_console, here):
    (here / "sweep.yaml").write_text("program: train.py\n")

    refused = bare_console("create", "swept", "--from", "sweep.yaml", code=2)

    assert "Missing option '--metric'" in refused.error
