"""The stores of a study's checkpoints: the study's own stores, and those that it only reads."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from studydb.artifacts.inline import INLINE
from studydb.artifacts.store import known_parts_of, parts_of
from studydb.artifacts.store_urls import open_store
from studydb.domain.errors import CheckpointError


class Stores(Struct, frozen=True):
    """
    The URLs of a study's stores; "inline:" is the database.

    Attributes:
        current: The store of new checkpoints.
        former: The stores that were the current store before, the newest first. A store that was
            the current store several times is in the list more than once.
        study_uuid: The study.
        sources: The stores of other studies from whose checkpoints trials of the study began, by
            the study's UUID, ordered as `current` and `former`. The study never writes to them.
    """

    current: str
    former: tuple[str, ...] = ()
    study_uuid: str = ""
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def own(self) -> list[str]:
        """Return the stores outside the database that may hold checkpoints of the study."""
        return _outside_database((self.current, *self.former))

    def store_of(self, url: str) -> str:
        """
        Find the store that holds an object.

        An object's URL is a store's URL and the object's path: study, trial, attempt and name. The
        store whose URL is the start of the object's URL is tried first. If that store does not have
        the object, for example because its directory was moved, the other stores of the object's
        study are tried.

        Returns:
            The store's URL; "inline:" if `url` is "inline:". If the object's study has only one
            store outside the database, that store's URL is returned without a search for the
            object. If no store has the object, the URL of the store that was tried first is
            returned.

        Raises:
            CheckpointError: The URL names no object of the study or of `sources`, or the object's
                study has no store outside the database.
            OSError: No store that this host can read has the object, and one of `places_of` cannot
                be read.
        """
        if url == INLINE:
            return INLINE
        study_uuid = known_parts_of(url, store="the study")[0]
        stores = _outside_database(self._timeline(study_uuid))
        if len(stores) == 1:
            return stores[0]
        if not stores or study_uuid not in (self.study_uuid, *self.sources):
            raise CheckpointError(
                f"{url!r} is in no store of the study; the row with this URL was damaged or "
                "changed."
            )
        places = self.places_of(url)
        ordered = [*places, *(store for store in stores if store not in places)]
        unreadable: list[str] = []
        for store in ordered:
            try:
                if open_store(store).exists(url):
                    return store
            except OSError as error:
                if store in places:
                    unreadable.append(str(error))
        if unreadable:
            raise OSError(
                f"No store that this host can read has the checkpoint {url}. "
                + " ".join(unreadable)
            )
        return ordered[0]

    def places_of(self, url: str) -> list[str]:
        """
        List the stores that may hold an object: where it was saved, and where it may be by now.

        A person who moves the files of a store names their new place as the current store. So that
        place was the current store after the store in the object's URL was it for the first time.

        Returns:
            First the store whose URL is the start of the object's URL. All stores of the object's
            study if there is no such store, for example because the database was copied.
        """
        timeline = self._timeline(known_parts_of(url, store="the study")[0])
        named = [place for place, store in enumerate(timeline) if _is_below(url, store)]
        if not named:
            return _outside_database(timeline)
        return _outside_database((timeline[named[0]], *timeline[: named[-1]]))

    def _timeline(self, study_uuid: str) -> tuple[str, ...]:
        """Return the stores that were the current store of a study, the newest first."""
        return self.sources.get(study_uuid, (self.current, *self.former))


def store_part(url: str) -> str:
    """Return the store's part of an object's URL: the URL without the object's path."""
    return "/".join(url.split("/")[: -len(parts_of(url) or ())])


def _outside_database(urls: Iterable[str]) -> list[str]:
    return [url for url in dict.fromkeys(urls) if url != INLINE]


def _is_below(url: str, store: str) -> bool:
    parts = parts_of(url)
    return parts is not None and url == "/".join((store.rstrip("/"), *parts))
