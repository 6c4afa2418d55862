"""The stores of a study's checkpoints: the study's own stores, and those that it only reads."""

from collections.abc import Sequence

from msgspec import Struct

from studydb.artifacts.inline import INLINE
from studydb.artifacts.store import parts_of
from studydb.artifacts.store_urls import open_store
from studydb.domain.errors import CheckpointError

FILES_ENDING = ".files"
"""The name of the folder beside an SQLite file is the file's name with this ending."""

CHECKPOINTS_FOLDER = "checkpoints"
"""The name of SQLite's default store, which is a directory in that folder."""


class Stores(Struct, frozen=True):
    """
    The URLs of a study's stores; "inline:" is the database.

    Attributes:
        current: The store of new checkpoints.
        former: The stores that may hold older checkpoints of the study.
        sources: The stores of other studies from whose checkpoints trials of the study began. The
            study reads these stores, and never writes to them.
        default: The store of a study that names no store. For SQLite, it is a directory beside the
            database's file, so its URL changes when the file is moved.
    """

    current: str
    former: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    default: str = INLINE

    def own(self) -> list[str]:
        """Return the stores outside the database that may hold checkpoints of the study."""
        return _outside_database(self.current, *self.former)

    def readable(self) -> list[str]:
        """Return all stores outside the database, first the current store, last `sources`."""
        return _outside_database(self.current, *self.former, *self.sources)

    def store_of(self, url: str) -> str:
        """
        Find the study's store that holds an object.

        An object's URL is a store's URL and the object's path: study, trial, attempt and name. The
        store whose URL is the start of the object's URL is tried first; or the default store, if
        the object's URL has the form that it had before the database's file was moved. If that
        store does not have the object, for example because its directory was moved, the other
        stores are tried.

        Returns:
            The store's URL; "inline:" if `url` is "inline:". If the study has only one store
            outside the database, that store's URL is returned without a search for the object. If
            no store has the object, the URL of the store that was tried first is returned.

        Raises:
            CheckpointError: The study has no store outside the database.
        """
        if url == INLINE:
            return INLINE
        stores = self.readable()
        if not stores:
            raise CheckpointError(
                f"{url!r} is in no store of the study; the row with this URL was damaged or "
                "changed."
            )
        if len(stores) == 1:
            return stores[0]
        named = [store for store in stores if _is_below(url, store)] or self._moved(url, stores)
        ordered = [*named, *(store for store in stores if store not in named)]
        return next((store for store in ordered if _has(store, url)), ordered[0])

    def _moved(self, url: str, stores: Sequence[str]) -> list[str]:
        """Return the default store if the URL begins with a default store's URL, else nothing."""
        was_default = store_part(url).endswith(f"{FILES_ENDING}/{CHECKPOINTS_FOLDER}")
        return [store for store in stores if store == self.default and was_default]


def store_part(url: str) -> str:
    """Return the store's part of an object's URL: the URL without the object's path."""
    return "/".join(url.split("/")[: -len(parts_of(url) or ())])


def _outside_database(*urls: str) -> list[str]:
    return [url for url in dict.fromkeys(urls) if url != INLINE]


def _is_below(url: str, store: str) -> bool:
    parts = parts_of(url)
    return parts is not None and url == "/".join((store.rstrip("/"), *parts))


def _has(store: str, url: str) -> bool:
    try:
        return open_store(store).exists(url)
    except (CheckpointError, OSError):
        return False
