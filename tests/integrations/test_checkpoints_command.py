"""Kept checkpoints: in Python, in `studydb checkpoints` and in `studydb status`; their export."""

import math
import pickle


def saved(study, *values, end=True):
    trial = study.ask()
    for step, value in enumerate(values, 1):
        trial.report({"loss": value}, checkpoint={"step": step})
    if end:
        trial.finish()
    return trial


def test_checkpoints_of_a_trial_have_step_value_size_and_contents(study):
    saved(study, 0.5, 0.25, math.nan)

    kept = study.trial(0).checkpoints

    assert [each.step for each in kept] == [2, 3]
    assert kept[0].value == 0.25
    assert math.isnan(kept[1].value)
    assert [each.to_dict() for each in kept] == [{"step": 2}, {"step": 3}]
    assert kept[0].size_bytes == len(pickle.dumps({"step": 2}))
    newest = study.best_trial.checkpoint
    assert (newest.step, math.isnan(newest.value)) == (3, True)
    assert study.trials[0].checkpoints[0].step == 2


def test_clone_that_has_saved_nothing_has_the_checkpoint_of_its_parent(study):
    saved(study, 0.5, 0.25, end=False).fail("lost its way")
    study.retry(0)

    assert study.trial(1).checkpoints == []
    assert study.trial(1).checkpoint.value == 0.25
    assert study.trial(1).checkpoint.to_dict() == {"step": 2}


def test_command_lists_the_kept_checkpoints_of_a_study_or_a_trial(console, study):
    saved(study, 0.5, 0.25, 0.75)
    saved(study, 0.125)

    page = console("checkpoints", "own")
    rows = console("checkpoints", "own", "--format", "json").json

    assert max(map(len, page.lines)) <= 80
    assert page.lines[0].split() == [
        *("number", "step", "value", "size", "kind", "pins", "created_at")
    ]
    assert [row.split()[:3] for row in page.lines[1:4]] == [
        ["0", "2", "0.25"],
        ["0", "3", "0.75"],
        ["1", "1", "0.125"],
    ]
    assert "  studydb export-checkpoint own 1 DIR --step 1" in page.lines
    assert [(row["number"], row["step"], row["attempt"], row["pins"]) for row in rows] == [
        (0, 2, 1, 0),
        (0, 3, 1, 0),
        (1, 1, 1, 0),
    ]
    assert len(console("checkpoints", "own", "0", "--format", "csv").lines) == 3
    newest = console("checkpoints", "own", "--limit", "1", "--format", "json").json
    assert [row["number"] for row in newest] == [1]
    assert console("checkpoints", "own", "7", code=1).error.startswith(
        "studydb: Study 'own' has no trial 7"
    )


def test_export_chooses_the_newest_the_best_or_a_step(console, study, tmp_path):
    saved(study, 0.5, 0.25, 0.75)
    saved(study, 0.125, math.nan)

    export = {
        "newest": ["0", "DIR"],
        "best": ["0", "DIR", "--best"],
        "of step": ["0", "DIR", "--step", "2"],
        "best trial": ["DIR", "--best"],
    }
    for name, words in export.items():
        target = str(tmp_path / name)
        console("export-checkpoint", "own", *(target if word == "DIR" else word for word in words))

    found = {
        name: pickle.loads((tmp_path / name / "checkpoint.pkl").read_bytes())["step"]
        for name in export
    }
    assert found == {"newest": 3, "best": 2, "of step": 2, "best trial": 1}


def test_status_sums_up_the_kept_checkpoints_by_host(console, study):
    before = console("status", "own").lines
    saved(study, 0.5, 0.25, 0.75)

    page = console("status", "own").lines
    (by_host,) = console("status", "own", "--format", "json").json["checkpoints"]

    assert not any(line.startswith("checkpoints") for line in before)
    kept = study.trial(0).checkpoints
    assert (by_host["n"], by_host["size_bytes"]) == (2, sum(each.size_bytes for each in kept))
    (line,) = [line for line in page if line.startswith("checkpoints")]
    assert (
        line.split(maxsplit=1)[1]
        == f"2 ({by_host['size_bytes']} B): {by_host['size_bytes']} B by {by_host['host']}"
    )
