"""
A process that measures one version of studydb with the benchmarks of that version.

`against.py` starts the process with a checkout and a database, and sends it calls as lines of JSON.
Only the standard library is imported before the checkout is first in sys.path, so that schema,
client and benchmarks are those of the checkout.
"""

import json
import signal
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any


class Version:
    """
    A database with the version's tables and study, and the processes that work on it.

    Args:
        build: The `build` of a plan, as "module:function" in the version's checkout.
        options: The arguments of `build` after the ExitStack and `index`.
        fill: A function, as "module:function", that is called before each slice with the database's
            URL and `fill_options`; or None.
    """

    def __init__(
        self,
        *,
        url: str,
        build: str,
        options: dict[str, Any],
        fill: str | None,
        fill_options: dict[str, Any],
    ) -> None:
        places, ours = import_module("benchmarks.places"), import_module("benchmarks.ours")
        ours.create(places.with_tables(url))
        self._url, self._fill, self._fill_options = url, fill, fill_options
        self._plan = import_module("benchmarks.teams").Plan(_found(build), options)
        self._stack = ExitStack()
        self._team: Any = None

    def start(self, size: int) -> None:
        """End the present team, and start a team of `size` processes."""
        self.close()
        self._team = self._stack.enter_context(
            import_module("benchmarks.teams").Team(self._plan, size)
        )
        self._team.ready()

    def run(self, contender: str, seconds: float) -> float:
        """Run one slice; return the units (trials, claims, …) per second."""
        if self._fill is not None:
            _found(self._fill)(self._url, **self._fill_options)
        return float(self._team.run(contender, seconds))

    def close(self) -> None:
        self._stack.close()


def _found(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leading process handles Ctrl-C
    checkout, answers, sys.stdout = Path(sys.argv[1]), sys.stdout, sys.stderr
    sys.path[:1] = [str(checkout / folder) for folder in ("", "scripts", "tests")]
    try:
        version = Version(**json.loads(sys.argv[2]))
        print(json.dumps({"answer": None}), file=answers, flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            answer = getattr(version, name)(*arguments)
            print(json.dumps({"answer": answer}), file=answers, flush=True)
        version.close()
    except Exception as error:  # noqa: BLE001  the leading process reports it
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)


if __name__ == "__main__":  # spawned processes import this file, too
    main()
