"""What went wrong with a study although its training goes on, in words."""

from typing import Any

from studydb.domain.text.display import visible


def trouble_text(row: Any) -> str:
    """One kind of trouble, by its newest event: which trial, what, how often."""
    more = f" (the newest of {row.times})" if row.times > 1 else ""
    data = row.data if isinstance(row.data, dict) else {}  # whatever its writer put there
    about = data.get("error") or f"{data.get('url')}, step {data.get('step')}"
    return visible(f"trial {row.number}: {row.kind}{more}: {about}")
