"""The examples of docs/resources.md run as written, except those of workers and own loops."""

import pytest
from harness.documented_code import blocks, commands, names_defined_in

from studydb.domain.resources import Resources


def module(name):
    """Return the page's block of code whose first line is a comment that contains only `name`."""
    (found,) = [code for code in blocks("resources.md", "py") if code.startswith(f"# {name}\n")]
    return found


@pytest.mark.nightly
def test_examples_of_the_page_about_resources_run(sqlite_stage, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_stage.storage)
    (tmp_path / "train.py").write_text("def main(config):\n    return 0.5\n")
    (tmp_path / "sizes.py").write_text(module("sizes.py"))

    study = names_defined_in("resources.md")["study"]

    assert study.status == "FINISHED"
    assert study.record.resources == Resources(cpus=1, memory_gb=2)
    create, *others = [words for words in commands("resources.md") if words[0] != "worker"]
    sqlite_stage.command(*create)
    for lr in range(9):
        sqlite_stage.command("enqueue", "big", f"lr=0.{lr + 1}")
    for words in others:
        sqlite_stage.command(*words)
    assert "Trial 0 fits no live worker" in sqlite_stage.command("status", "big")
    assert "sizes:needs(config)" in sqlite_stage.command("show", "deep")
    study.close()
