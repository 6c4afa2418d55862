"""Records of a checkpoint: `Upload` before it is stored, `Saved` after, `Restore` to fetch it."""

from typing import Annotated, Self

from msgspec import Meta, Struct

from studydb.artifacts.stores import Stores
from studydb.domain.checkpoint import Checkpoint, CheckpointKind
from studydb.domain.metrics import STEPS_END

Count = Annotated[int, Meta(ge=0, lt=STEPS_END)]
_Url = Annotated[str, Meta(max_length=4096, pattern=r"^[^\0]*\Z")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]


class Upload(Struct, frozen=True):
    """
    A checkpoint that is about to be written to a store outside the database.

    Attributes:
        url: The URL that the object will have.
    """

    uuid: _Uuid
    url: _Url


class Saved(Struct, frozen=True):
    """
    The record of a checkpoint whose bytes are in a store of files, or in `data` if it is inline.

    A child sends this record to its worker, which decodes it by these types.

    Attributes:
        url: The URL of the bytes; "inline:" if they are in `data`.
        step: The last step that the checkpoint contains.
        data: The bytes of an inline checkpoint.
    """

    uuid: _Uuid
    kind: CheckpointKind
    url: _Url
    digest: _Digest
    size_bytes: Count
    step: Count
    data: bytes | None = None


class Restore(Struct, frozen=True):
    """
    A checkpoint to fetch; its signature was verified.

    Attributes:
        url: The URL of the bytes; "inline:" if they are in `data`.
        step: The last step that the checkpoint contains.
        size_bytes: The size in the checkpoint's row. A cache finds a dict by digest and size, and
            a directory by digest, size and `url`.
        data: The bytes of an inline checkpoint.
        stores: The study's stores, one of which holds the bytes unless `data` has them.
    """

    kind: CheckpointKind
    url: str
    digest: str
    step: int
    size_bytes: int = 0
    data: bytes | None = None
    stores: Stores | None = None

    @classmethod
    def of(cls, row: Checkpoint, *, data: bytes | None, stores: Stores) -> Self:
        """Describe the checkpoint of a row whose signature was verified."""
        kind = CheckpointKind(row.kind)
        return cls(kind, row.url, row.digest, row.step, row.size_bytes, data, stores)
