"""Open a checkpoint store by its URL."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.store import Store
from studydb.domain.errors import UsageError


def open_store(url: str) -> Store:
    """
    Open the store that a URL names.

    Args:
        url: A path, "file:///path", or the URL of a remote store such as "s3://bucket/prefix".

    Raises:
        UsageError: The URL has no valid form, studydb has no store for such a URL, or
            `check_remote_url` refuses the URL, for example because it contains a password.
    """
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        shown = re.sub("//.*@", "//", url)  # without a password
        raise UsageError(f"Checkpoints cannot go to {shown!r}: {error}. Correct the URL.") from None
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost") and parsed.path:
        return DirectoryStore(Path(unquote(parsed.path)))
    if "://" not in url and url and not url.startswith("file:"):
        return DirectoryStore(Path(url))
    if "://" in url:
        from studydb.artifacts.remote import SCHEMES, RemoteStore  # noqa: PLC0415  imports tenacity

        if parsed.scheme in SCHEMES:
            return RemoteStore(url)
    shown = re.sub("//.*@", "//", url)  # without a password
    raise UsageError(
        f"Checkpoints cannot go to {shown!r}. Give a directory that all workers see, as a path or "
        "as file:///path, or the URL of a store: s3://, gs://, abfs:// or sftp://."
    )
