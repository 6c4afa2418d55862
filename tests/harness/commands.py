"""Runs commands as processes; lists studydb commands that only read."""

import subprocess
from collections.abc import Sequence
from typing import Any


def run_command(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and its output as text."""
    given = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, check=False, **(given | options))


def reading_commands(study: str) -> list[tuple[str, ...]]:
    """Command lines that take `--format` and only read (all studies, a study or its trial 0)."""
    return [
        ("studies",),
        ("status",),
        ("status", study),
        ("trials", study),
        ("trials", study, "--sort", "best"),
        ("show", study),
        ("show", study, "0"),
        ("results", study, "0"),
        ("best", study),
        ("workers",),
        ("workers", study),
    ]
