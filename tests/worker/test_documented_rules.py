"""The example of docs/stop-rules.md runs as it is written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.documented_code import commands, only_block

TRAIN = """
def main(config):
    for step in range(20):
        yield {"loss": max(0.5, 1 - step / 4)}
"""


@pytest.mark.nightly
def test_example_of_the_page_about_stop_rules_runs(sqlite_stage, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_stage.storage)
    (tmp_path / "my_rules.py").write_text(only_block("stop-rules.md", "python"))
    (tmp_path / "train.py").write_text(TRAIN)
    (words,) = commands("stop-rules.md")
    run_command = sqlite_stage.command

    run_command(*words)
    console = Path(sys.executable).parent / "studydb"
    subprocess.run([console, "worker", "--study", "slow", "--max-trials", "1"], check=True)

    shown = run_command("show", "slow", "0")
    assert "step 6 met the rule my_rules:TooSlow(patience=3): no better than 0.5" in shown
    shown = run_command("show", "slow")
    assert re.search(r"^stop +loss>=3, my_rules:TooSlow\(patience=3\)$", shown, re.MULTILINE)
