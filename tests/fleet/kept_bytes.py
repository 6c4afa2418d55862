"""Compares what a store of checkpoints holds with the rows of a study that has ended."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

import studydb
from studydb.db.schema import checkpoint, upload
from studydb.domain.checkpoint import CheckpointKind
from studydb.lease.upload_collector import collect_uploads

if TYPE_CHECKING:
    from fleet.faulty_store import FaultyStore

_DEPTH = 4
"""The name of a checkpoint's object has four parts."""


def wrong_bytes(study: studydb.Study, store: "FaultyStore | None" = None) -> list[str]:
    """
    Delete what crashes have left; compare the store with the rows; return the violations.

    Args:
        store: The S3 server of the study; None if a directory or the database keeps checkpoints.
    """
    collected = study.gc()
    n_left = collect_uploads(study.database, study.record)
    with study.database.begin(write=False) as txn:
        rows = txn.all(sa.select(checkpoint).where(checkpoint.c.study_id == study.record.id))
        begun = txn.all(sa.select(upload).where(upload.c.study_id == study.record.id))
    wrong = [f"not deleted: {url}" for url in collected.left]
    wrong += [f"{n_left} uploads are not collected"] if n_left else []
    wrong += [f"the row of an upload is left: {row.url}" for row in begun]
    wrong += [
        f"the row of a removed checkpoint is left: {row.url}" for row in rows if row.removed_at
    ]
    if store is not None:
        wrong += [f"an upload is unfinished: {key}" for key in store.unfinished()]
        found = [key.split("/", 1)[1] for key in store.objects()]
    else:
        found = _files(study)
    return wrong + _differences(rows, found)


def _files(study: studydb.Study) -> list[str]:
    """The paths of all files and hidden directories (unfinished saves) in the study's stores."""
    stores = study.database.locations.checkpoint_stores(study.record)
    roots = [Path(unquote(urlsplit(url).path)) for url in stores.own()]
    return [
        str(path.relative_to(root))
        for root in roots
        for path in root.rglob("*")
        if path.is_file() or path.name.startswith(".")
    ]


def _differences(rows: list[sa.Row], found: list[str]) -> list[str]:
    named = {"/".join(row.url.split("/")[-_DEPTH:]): row for row in rows if row.data is None}
    held: dict[str, list[str]] = {}
    for name in found:
        parts = name.split("/")
        held.setdefault("/".join(parts[:_DEPTH]), []).append("/".join(parts[_DEPTH:]))
    wrong = [f"no row names {name}" for name in sorted(held.keys() - named.keys())]
    wrong += [f"the store lacks {name}" for name in sorted(named.keys() - held.keys())]
    for name in held.keys() & named.keys():
        is_whole = held[name] == [""] or named[name].kind == CheckpointKind.DIRECTORY
        wrong += [] if is_whole else [f"{name} holds {held[name]}"]
    return wrong
