"""The Python code of a page in docs/."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def names_defined_in(page: str) -> dict[str, Any]:
    """Run the only block of Python on a page; return the names that the block defines."""
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert code.count("\n") < 100
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    return names
