"""The stores of a study's checkpoints: the study's own stores, and those that it only reads."""

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
        former: The stores that may hold older checkpoints of the study.
        sources: The stores of other studies from whose checkpoints trials of the study began. The
            study reads these stores, and never writes to them.
    """

    current: str
    former: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

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
        store whose URL is the start of the object's URL is tried first. If that store does not have
        the object, for example because its directory was moved, the other stores are tried.

        Returns:
            The store's URL; "inline:" if `url` is "inline:". If the study has only one store
            outside the database, that store's URL is returned without a search for the object. If
            no store has the object, the URL of the store that was tried first is returned.

        Raises:
            CheckpointError: The study has no store outside the database.
            OSError: No store that this host can reach has the object, so it may be in another.
        """
        store, error = self._search(url)
        if error is None:
            return store
        raise OSError(
            f"The checkpoint {url} is not in the stores that this host can read, but may be in "
            f"another. {error}"
        ) from error

    def likely_store_of(self, url: str) -> str:
        """Find a store as `store_of` does, but count a store that cannot be reached as empty."""
        return self._search(url)[0]

    def _search(self, url: str) -> tuple[str, Exception | None]:
        """
        Return the store for `likely_store_of`, and the error of a store that cannot be reached.

        The error is None if a store has the object, because the other stores then do not matter.
        """
        if url == INLINE:
            return INLINE, None
        stores = self.readable()
        if not stores:
            raise CheckpointError(
                f"{url!r} is in no store of the study; the row with this URL was damaged or "
                "changed."
            )
        if len(stores) == 1:
            return stores[0], None
        named = [store for store in stores if _is_below(url, store)]
        ordered = [*named, *(store for store in stores if store not in named)]
        unreachable: Exception | None = None
        for store in ordered:
            try:
                if open_store(store).exists(url):
                    return store, None
            except (CheckpointError, OSError) as error:
                unreachable = unreachable or error
        return ordered[0], unreachable


def store_part(url: str) -> str:
    """Return the store's part of an object's URL: the URL without the object's path."""
    return "/".join(url.split("/")[: -len(parts_of(url) or ())])


def _outside_database(*urls: str) -> list[str]:
    return [url for url in dict.fromkeys(urls) if url != INLINE]


def _is_below(url: str, store: str) -> bool:
    parts = parts_of(url)
    return parts is not None and url == "/".join((store.rstrip("/"), *parts))
