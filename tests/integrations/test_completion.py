"""Completion in shells: what `completion` prints makes them ask the console itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    """A folder with an executable `studydb`, as an installation has it."""
    script = tmp_path / "bin" / "studydb"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom studydb.__main__ import main\nmain()\n")
    script.chmod(0o755)
    return script.parent


def pressed(program: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    lines = subprocess.run(
        [program / "studydb", "completion", "bash"], capture_output=True, check=True
    )
    (folder / "lines").write_bytes(lines.stdout)
    code = PRESS_TAB.format(words=" ".join(f"'{word}'" for word in words), place=len(words) - 1)
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "--norc", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
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

    ran = subprocess.run(
        [shell, "-n", "lines"], cwd=here, capture_output=True, text=True, check=False
    )

    assert (ran.returncode, ran.stderr) == (0, "")


def test_bash_completes_commands_and_options(program, tmp_path):
    assert pressed(program, tmp_path, "studydb", "com") == ["completion"]
    assert set(pressed(program, tmp_path, "studydb", "")) >= set(COMMANDS)
    assert "--allow-import" in pressed(program, tmp_path, "studydb", "worker", "--all")
    assert pressed(program, tmp_path, "studydb", "trials", "digits", "--sort", "b") == ["best"]
    assert pressed(program, tmp_path, "studydb", "db", "up") == ["upgrade"]


def test_unknown_shell_is_told_with_those_that_are_known(bare_console):
    ran = bare_console("completion", "tcsh", code=2)

    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in ran.err
