"""The examples of docs/limits.md run as they are written."""

import pytest
from harness.documented_code import commands, names_defined_in


@pytest.mark.nightly
def test_examples_of_the_page_about_limits_run(sqlite_stage, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_stage.storage)
    (tmp_path / "train.py").write_text("def main(config):\n    return 0.5\n")

    study = names_defined_in("limits.md")["study"]

    assert study.status == "STOPPED"
    assert study.progress.limit_reached.startswith("cost_limit is reached")
    for words in commands("limits.md"):
        sqlite_stage.command(*words)
    assert study.status == "RUNNING"
    study.close()
