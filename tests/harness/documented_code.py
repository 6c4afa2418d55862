"""The code and the commands of a page in docs/."""

import re
import shlex
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code in a language on a page."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def only_block(page: str, language: str) -> str:
    (code,) = blocks(page, language)
    return code


def commands(page: str) -> list[list[str]]:
    """The commands on a page, each as a list of words without `studydb`."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines]


def names_defined_in(page: str) -> dict[str, Any]:
    """Run the only block of Python on a page; return the names that the block defines."""
    code = only_block(page, "python")
    assert code.count("\n") < 100
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    return names
