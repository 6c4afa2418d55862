"""Makes something once for all processes of a pytest run: a server, or a template of a database."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def shared(folder: Path, name: str, make: Callable[[ExitStack], str]) -> Iterator[str]:
    """
    Share what the first process makes, until the block ends.

    At the end of its block, the first process waits until no other process uses what it made.

    Args:
        folder: A folder of the pytest run, the same in all processes.
        name: Names what is shared; the folder gets files of this name.
        make: Makes what is shared, and returns the text by which all processes find it, such as a
            URL. The stack that `make` gets is closed when no other process uses what is shared.
    """
    place = folder / f"{name}.made"
    with (
        (folder / f"{name}.lock").open("w") as lock,
        (folder / f"{name}.users").open("w") as users,
        ExitStack() as made,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_maker = not place.exists()
        if is_maker:
            place.write_text(make(made))
        found = place.read_text()
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        try:
            yield found
        finally:
            if is_maker:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a process that comes now calls its own `make`
                place.unlink()
                fcntl.flock(users, fcntl.LOCK_EX)
