"""Defaults of the package's msgspec structs are not made by `dataclasses.field`."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator

from msgspec import Struct

import studydb


def test_no_default_of_a_struct_is_a_field_of_dataclasses():
    """msgspec would use the `Field` object of `dataclasses.field` itself as the default value."""
    for module in pkgutil.walk_packages(studydb.__path__, "studydb."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    structs = [each for each in subclasses(Struct) if each.__module__.startswith("studydb.")]

    wrong = [
        f"{each.__module__}.{each.__qualname__}"
        for each in structs
        for default in each.__struct_defaults__
        if isinstance(default, dataclasses.Field)
    ]

    assert len(structs) > 50
    assert wrong == []


def subclasses(parent: type[Struct]) -> Iterator[type[Struct]]:
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)
