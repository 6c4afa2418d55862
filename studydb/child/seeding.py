"""
Seed the random generators that the user's code and its libraries share: Python's and numpy's.

The import of numpy takes 0.1 s and 20 MB, so this module does not import it. Where numpy is not
imported yet, its generator is seeded when other code imports it.
"""

import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_GENERATOR = "numpy.random"


def seed(number: int, *, after_step: int = 0) -> None:
    """
    Seed Python's generator, and numpy's now or when it is imported.

    Args:
        after_step: The step after which a trial goes on. Its next steps get other random numbers
            than its first steps had.
    """
    if after_step:
        digest = sha256(f"{number} {after_step}".encode()).digest()
        number = int.from_bytes(digest[:8], "big") >> 1
    random.seed(number)
    _finder.number = number
    if _GENERATOR in sys.modules:
        _seed_numpy(sys.modules[_GENERATOR], number)
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _seed_numpy(module: ModuleType, number: int) -> None:
    module.seed(number % 2**32)


class _SeedingFinder(MetaPathFinder):
    """
    Finds `numpy.random` for the import system, with a loader that seeds the loaded module.

    The seed is the number that the last call of `seed` has computed.

    The finder stays in `sys.meta_path` until the module is loaded: code may ask for the spec alone,
    and an import may fail.
    """

    number = 0

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _GENERATOR:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _SeedingLoader(spec.loader)
        return spec


class _SeedingLoader(Loader):
    """Loads `numpy.random` by the loader that was found for it, and then seeds the module."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _seed_numpy(module, _finder.number)
        with suppress(ValueError):  # another thread has removed the finder
            sys.meta_path.remove(_finder)


_finder = _SeedingFinder()
