"""The stores of a study's checkpoints: the current store and the former stores."""

from collections.abc import Iterator

from msgspec import Struct

from studydb.artifacts.inline import INLINE
from studydb.artifacts.store import parts_of
from studydb.artifacts.store_urls import open_store
from studydb.domain.errors import CheckpointError


class Stores(Struct, frozen=True):
    """
    The URLs of a study's stores; "inline:" is the database.

    Attributes:
        current: The store of new checkpoints.
        former: The stores that may hold older checkpoints.
    """

    current: str
    former: tuple[str, ...] = ()

    def outside_database(self) -> Iterator[str]:
        """Yield the URL of each store outside the database once, first the current store."""
        yield from dict.fromkeys(url for url in (self.current, *self.former) if url != INLINE)

    def store_of(self, url: str) -> str:
        """
        Find the study's store that holds an object.

        An object's URL is a store's URL and the object's path: study, trial, attempt and name. The
        store whose URL is the start of the object's URL is tried first. If it does not have the
        object, for example because its directory was moved, the other stores are tried.

        Returns:
            The store's URL; "inline:" if `url` is "inline:". If the study has only one store
            outside the database, that store's URL is returned without a search for the object. If
            no store has the object, the URL of the store that was tried first is returned.

        Raises:
            CheckpointError: The study has no store outside the database.
        """
        if url == INLINE:
            return INLINE
        stores = list(self.outside_database())
        if not stores:
            raise CheckpointError(
                f"{url!r} is in no store of the study; the row with this URL was damaged or "
                "changed."
            )
        if len(stores) == 1:
            return stores[0]
        named = [store for store in stores if _is_below(url, store)]
        ordered = [*named, *(store for store in stores if store not in named)]
        return next((store for store in ordered if _has(store, url)), ordered[0])


def _is_below(url: str, store: str) -> bool:
    parts = parts_of(url)
    return parts is not None and url == "/".join((store.rstrip("/"), *parts))


def _has(store: str, url: str) -> bool:
    try:
        return open_store(store).exists(url)
    except (CheckpointError, OSError):
        return False
