"""`studydb completion` prints lines with which a shell completes commands and options."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from harness.commands import run_command

from studydb.cli.commands import COMMANDS

SHELLS = ["bash", "zsh", "fish"]

PRESS_TAB = """
source ./lines
COMP_WORDS=({words}) COMP_CWORD={place}
_studydb_completion studydb
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def program(tmp_path):
    script = tmp_path / "bin" / "studydb"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom studydb.__main__ import main\nmain()\n")
    script.chmod(0o755)
    return script.parent


def complete(program: Path, folder: Path, *words: str) -> list[str]:
    """Return the completions that bash offers for the last word."""
    lines = run_command([program / "studydb", "completion", "bash"])
    (folder / "lines").write_text(lines.stdout)
    code = PRESS_TAB.format(words=" ".join(f"'{word}'" for word in words), place=len(words) - 1)
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
    ran = run_command(["bash", "--norc", "-c", code], cwd=folder, env=environment)
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_prints_lines_that_call_studydb_for_every_shell(bare_console, here, shell):
    ran = bare_console("completion", shell)

    assert f"_STUDYDB_COMPLETE={shell}_complete" in ran.out
    assert ran.err == ""
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_lines_are_valid_syntax_of_their_shell(bare_console, here, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    (here / "lines").write_text(bare_console("completion", shell).out)

    ran = run_command([shell, "-n", "lines"], cwd=here)

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.slow
def test_bash_completes_commands_and_options(program, tmp_path):
    assert complete(program, tmp_path, "studydb", "com") == ["completion"]
    assert set(complete(program, tmp_path, "studydb", "")) >= set(COMMANDS)
    assert "--allow-import" in complete(program, tmp_path, "studydb", "worker", "--all")
    assert complete(program, tmp_path, "studydb", "trials", "digits", "--sort", "b") == ["best"]
    assert complete(program, tmp_path, "studydb", "db", "up") == ["upgrade"]
