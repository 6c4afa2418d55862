"""Store and read objects bound to a trainable; equal objects of a study are stored once."""

from contextlib import suppress
from uuid import UUID

from studydb.artifacts.store import Place, Stored, digest_of
from studydb.artifacts.store_urls import open_store
from studydb.artifacts.stores import Stores
from studydb.domain.errors import CheckpointError


def store_parameter(store_url: str, study_uuid: str, data: bytes) -> Stored:
    """
    Store bytes under their digest, unless the study's store has them already.

    Raises:
        CheckpointError: The store fails.
    """
    store, digest = open_store(store_url), digest_of(data)
    place = _place(study_uuid, digest)
    url = "/".join((store.url.rstrip("/"), *place.parts))
    with suppress(CheckpointError, OSError):
        store.get_bytes(url, digest=digest)
        return Stored(url, digest, len(data))
    return store.put_bytes(place, data)


def fetch_parameter(stores: Stores, url: str, *, digest: str) -> bytes:
    """
    Read the bytes that `store_parameter` has stored.

    Raises:
        CheckpointError: The bytes are missing or damaged, or no store can have an object with this
            URL.
        OSError: This host cannot reach the store.
    """
    return open_store(stores.store_of(url)).get_bytes(url, digest=digest)


def _place(study_uuid: str, digest: str) -> Place:
    """
    Return where bytes are stored.

    The two halves of their digest are used as the UUIDs of a trial and of its checkpoint.
    """
    halves = (str(UUID(half)) for half in (digest[:32], digest[32:]))
    return Place(study_uuid, next(halves), 0, 0, next(halves))  # attempts count from 1
