"""What went wrong with a study although its training goes on, in words."""

from typing import Any

from studydb.domain.wording import visible


def trouble_text(row: Any) -> str:
    """One kind of trouble, by its newest event: which trial, what, how often."""
    more = f" (the newest of {row.times})" if row.times > 1 else ""
    about = row.data.get("error") or f"{row.data.get('url')}, step {row.data.get('step')}"
    return f"trial {row.number}: {row.kind}{more}: {visible(about)}"
