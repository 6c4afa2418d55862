"""
Store and fetch checkpoints, and the objects that are bound to a trainable.

Both are stored whole or not at all, and each read from a store checks a digest.
"""

from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.inline import (
    INLINE,
    INLINE_LIMIT_BYTES,
    check_inline_size,
    pack_directory,
    unpack_directory,
)
from studydb.artifacts.library_threads import library_threads
from studydb.artifacts.locations import Locations
from studydb.artifacts.parameter_files import fetch_parameter, store_parameter
from studydb.artifacts.signing import is_signed, sign_checkpoint
from studydb.artifacts.store import Place, Store, Stored, check_uuid, digest_of, parts_of
from studydb.artifacts.store_urls import open_store
from studydb.artifacts.stores import Stores, store_part
from studydb.artifacts.tree import scan

__all__ = [
    "INLINE",
    "INLINE_LIMIT_BYTES",
    "DirectoryStore",
    "Locations",
    "Place",
    "Store",
    "Stored",
    "Stores",
    "check_inline_size",
    "check_uuid",
    "digest_of",
    "fetch_parameter",
    "is_signed",
    "library_threads",
    "open_store",
    "pack_directory",
    "parts_of",
    "scan",
    "sign_checkpoint",
    "store_parameter",
    "store_part",
    "unpack_directory",
]
