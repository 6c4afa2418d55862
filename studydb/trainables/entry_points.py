"""Trainables that installed packages offer by name: the entry points of one group."""

from typing import TYPE_CHECKING

from studydb.domain.errors import TrainableError
from studydb.domain.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "studydb.trainables"


def path_of(name: str) -> str:
    """
    Find the import path "module:function" of an entry point of `GROUP`.

    The study stores this path and not the name: on another host the name could belong to another
    package, and the signature would then allow code that the signer did not mean.

    Raises:
        TrainableError: No installed package offers the name, two packages offer different functions
            by this name, or the package names no function.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  slow, and rarely needed

    known = entry_points(group=GROUP)
    paths = {_path(each) for each in known if each.name == name}
    if not paths:
        names = sorted({each.name for each in known})
        raise TrainableError(
            f"The trainable {name!r} is not an import path; write 'module:function', for example "
            f"'train:main'. Packages here offer "
            f"{'these names: ' + ', '.join(names) if names else 'no trainable by name'}."
            f"{did_you_mean(name, names)}"
        )
    if len(paths) > 1:
        raise TrainableError(
            f"Several packages offer a trainable {name!r}: {', '.join(sorted(paths))}. "
            "Write the path that you mean."
        )
    return paths.pop()


def _path(found: "EntryPoint") -> str:
    if found.pattern.match(found.value) is None:
        package = "A package" if found.dist is None else f"The package {found.dist.name!r}"
        raise TrainableError(
            f"{package} offers the trainable {found.name!r} as {found.value!r}, which is not an "
            "import path. Write 'module:function' in the package's entry points, with the name by "
            "which Python imports the module, and install the package again."
        )
    if not found.attr:
        raise TrainableError(
            f"The entry point {found.name!r} names the module {found.module!r}; its package must "
            "name a function, as 'module:function'."
        )
    return f"{found.module}:{found.attr}"
