"""Open a checkpoint store by its URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.store import Store
from studydb.domain.errors import UsageError


def open_store(url: str) -> Store:
    """
    Open the store that a URL names.

    Args:
        url: A path, or "file:///path".

    Raises:
        UsageError: studydb has no store for such a URL.
    """
    parsed = urlsplit(url)
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost") and parsed.path:
        return DirectoryStore(Path(unquote(parsed.path)))
    if "://" not in url and url and not url.startswith("file:"):
        return DirectoryStore(Path(url))
    raise UsageError(
        f"Checkpoints cannot go to {url!r}. Give a directory that all workers see, "
        "as a path or as file:///path."
    )
