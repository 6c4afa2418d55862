"""The progress of a study: one line on a terminal; elsewhere a plain line at most every 5 s."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from studydb.domain.life.states import State
from studydb.domain.objective import Objective
from studydb.domain.records import Counts
from studydb.domain.text.display import best_text, counted, duration_text, visible

if TYPE_CHECKING:
    from rich.live import Live

PLAIN_EVERY_S = 5.0
"""The least time between two plain lines, for a log, a pipe or a notebook."""


class ProgressLine:
    """
    Shows the number of trials in each state and the best value of a running study, on stderr.

    The first `update` starts the display. On a terminal, each update replaces the line. On another
    stream, the line is printed if it has changed: at most every 5 s, and once more at the end.
    """

    def __init__(
        self,
        study_name: str,
        objective: Objective,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Prepare the display.

        Args:
            stream: The stream to write to; None for stderr.
            clock: Returns seconds, for the time between plain lines.
        """
        self._name, self._objective = study_name, objective
        stream = stream or sys.stderr
        # In a program that was started without stderr, `sys.stderr` is None.
        self._stream = stream or Path(os.devnull).open("w")  # noqa: SIM115
        self._clock = clock
        self._live: Live | None = None
        self._line = ""
        self._printed_line = ""
        self._printed_at_s = -PLAIN_EVERY_S

    def update(
        self,
        counts: Counts,
        best_value: float | None,
        elapsed_s: float,
        *,
        n_to_make: int | None = None,
        n_clones: int = 0,
    ) -> None:
        """
        Show the newest counts and best value.

        Args:
            best_value: None until a trial has a value.
            elapsed_s: Seconds since the run began.
            n_to_make: How many more new trials the budget allows; None without a budget.
            n_clones: How many of the trials are clones.
        """
        share = ""
        if n_to_make is not None and (in_all := counts.total + n_to_make):
            clones = f" with {counted(n_clones, 'clone')}" if n_clones else ""
            percentage = 100 * (counts.terminated + counts.error) // in_all
            share = f"{percentage} % of {in_all}{clones}, "
        described = self._describe(counts, best_value, share)
        self._line = f"{described}  [{duration_text(elapsed_s)}]"
        if self._stream.isatty():
            self._draw()
        elif self._clock() - self._printed_at_s >= PLAIN_EVERY_S:
            self._print()

    def show_message(self, line: str) -> None:
        """Print a message above the line."""
        line = visible(line, keep="\n\t")
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Close the display; the last line stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._line:
            self._print()

    def _describe(self, counts: Counts, best_value: float | None, share: str) -> str:
        numbers = ", ".join(
            f"{number} {state}"
            for state in State
            if (number := getattr(counts, state.lower())) or state is State.RUNNING
        )
        best = f"best {self._objective}: {best_text(best_value, self._objective.mode)}"
        return visible(f"{self._name}: {share}{numbers}; {best}")

    def _draw(self) -> None:
        from rich.console import Console  # noqa: PLC0415  a worker's log needs no rich
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        # Cut the text to the width of the terminal, so that it stays one line.
        line = Text(self._line, no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(line, console=Console(file=self._stream), auto_refresh=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def _print(self) -> None:
        if self._line != self._printed_line:
            print(self._line, file=self._stream, flush=True)
        self._printed_line, self._printed_at_s = self._line, self._clock()
