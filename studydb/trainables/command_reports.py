"""
Find the reports in a command's output; decode reports from its output, a file or a socket.

In the output, a report has one of three forms: `[studydb] {…}` anywhere in a line; `[tune-metric]:
{…}` anywhere in a line, as scripts for Syne Tune print it; or a line that matches the command's
`report_regex`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from studydb.domain.errors import InvalidReport, InvalidSpec
from studydb.domain.metrics import STEP
from studydb.domain.text.display import shortened

LINE_BYTES = 1 << 20
"""
A line with more than about this many bytes is skipped. But if these bytes contain `[studydb]` or
`[tune-metric]:` on stdout, the trial fails.
"""

_MARK, _TUNE_MARK = b"[studydb]", b"[tune-metric]:"
_TUNE_OWN = "st_"
"""Syne Tune's reporter adds times and counters with this prefix."""

CHECKPOINT = "checkpoint"
STEP_NAMES = ("step", STEP)

_ENDS = re.compile(rb"([\r\n])")
"""A line feed ends a line; a carriage return ends a text that the next text overwrites."""

_decoder = json.JSONDecoder()


class CommandReport(Struct, frozen=True):
    """
    What a command reports at one step.

    Attributes:
        metrics: What `studydb.report` takes as `metrics`.
        checkpoint: True if `$STUDYDB_SAVE` holds the checkpoint; the path of a directory that holds
            it; or False if the report has no checkpoint.
    """

    metrics: dict[str, Any]
    checkpoint: bool | str = False


def read_json(text: bytes) -> CommandReport:
    """
    Read a report in JSON; text after the object is ignored. NaN and Infinity are numbers.

    Raises:
        InvalidReport: The text does not begin with a JSON object, or its checkpoint is wrong.
    """
    shown = text.decode(errors="replace").strip()
    try:
        value, _ = _decoder.raw_decode(shown)
    except (ValueError, RecursionError) as cause:
        raise InvalidReport(
            f"The report {shortened(shown, 200)!r} is not JSON: {cause}. "
            'Write an object such as {"step": 3, "error": 0.1}.'
        ) from None
    if not isinstance(value, dict):
        raise InvalidReport(
            f"The report {shortened(shown, 200)!r} is no JSON object. "
            'Write one such as {"step": 3, "error": 0.1}.'
        )
    return read_fields(value)


def read_fields(fields: Mapping[str, Any]) -> CommandReport:
    """
    Split the fields of a report into metrics and checkpoint; `step` becomes `training_iteration`.

    If the report has both of these fields, `step` stays a metric. If `training_iteration` is None,
    the report has no step of its own: it gets the last step + 1.

    Raises:
        InvalidReport: `checkpoint` is given, but it is neither a boolean nor a path.
    """
    metrics = dict(fields)
    checkpoint = metrics.pop(CHECKPOINT, False) or False
    if not isinstance(checkpoint, bool | str):
        raise InvalidReport(
            f"The report's checkpoint is {checkpoint!r}; it must be true, or a directory's path."
        )
    if metrics.get(STEP, 0) is None:
        del metrics[STEP]
    elif "step" in metrics and STEP not in metrics:
        metrics[STEP] = metrics.pop("step")
    return CommandReport(metrics, checkpoint)


class ReportPattern:
    """
    A study's pattern for lines of output; a group has the name of a metric or of the step.

    The group of the study's metric has the metric's name, with `_` in place of each character that
    a group's name cannot have.
    """

    def __init__(self, pattern: str) -> None:
        """
        Compile the pattern.

        Raises:
            InvalidSpec: The pattern is no regular expression, or no group has a metric's name.
        """
        try:
            self._pattern = re.compile(pattern)
        except re.error as cause:
            is_name = "bad character in group name" in cause.msg
            cure = " For a metric val/loss, call the group val_loss." if is_name else ""
            raise InvalidSpec(f"--report-regex {pattern!r} is wrong: {cause}.{cure}") from None
        self.names = set(self._pattern.groupindex)
        if not self.names - set(STEP_NAMES):
            raise InvalidSpec(
                f"--report-regex {pattern!r} names no metric; write a group such as "
                r"(?P<error>\S+)."
            )

    def check(self, metric: str) -> None:
        """Refuse a pattern without a group for the study's metric, or with one for a checkpoint."""
        group = _group_name(metric)
        if group not in self.names or CHECKPOINT in self.names:
            raise InvalidSpec(
                f"--report-regex has the groups {', '.join(sorted(self.names))}; it needs one for "
                f"the study's metric, (?P<{group}>…), and none called {CHECKPOINT!r}."
            )

    def matches(self, line: str) -> bool:
        """Whether a line has what the pattern looks for."""
        return self._pattern.search(line) is not None

    def read(self, line: str, metric: str, *, skips_texts: bool = False) -> CommandReport | None:
        """
        Return the report in a line; None if the line does not match.

        Args:
            metric: The study's metric; the group `val_loss` stands for the metric `val/loss`.
            skips_texts: Whether to return None instead of raising if a group's text is no number.

        Raises:
            InvalidReport: A group's text is no number, or the step is no integer of 1 or more.
        """
        found = self._pattern.search(line)
        if found is None:
            return None
        metrics: dict[str, Any] = {}
        for name, text in found.groupdict().items():
            if text is None:
                continue
            try:
                metrics[name] = int(text) if name in STEP_NAMES else float(text)
            except ValueError:
                if skips_texts:
                    return None
                kind = "integer" if name in STEP_NAMES else "number"
                raise InvalidReport(
                    f"--report-regex found {name}={text!r}, which is no {kind}."
                ) from None
            if name in STEP_NAMES and metrics[name] < 1:
                raise InvalidReport(
                    f"--report-regex found {name}={text!r}, but steps count from 1. If the log "
                    f"counts from 0, leave out the group {name}: studydb then counts the steps."
                )
        group = _group_name(metric)
        if group != metric and group in metrics:
            metrics[metric] = metrics.pop(group)
        return read_fields(metrics)


def _group_name(metric: str) -> str:
    """Return the name of a metric's group: `_` replaces characters that the name cannot have."""
    return re.sub(r"\W|^(?=\d)", "_", metric)


class ReportLines:
    """
    Finds the reports in the bytes of a stream.

    Attributes:
        has_matched: Whether the pattern has found a report.
        has_ignored: Whether a report that the pattern found was ignored.
        ignores_pattern: Whether the pattern's reports are ignored, because those of the command's
            other stream are read. A program may log the same line to both streams.

    On stderr, only the pattern finds reports, and a line whose groups are no numbers is skipped: a
    traceback shows source code, which may look like a line of the log.

    A carriage return lets the next text overwrite the text before it, as in a progress bar. Marked
    reports are read in each text. The pattern reads the last text of a line, which people see.
    """

    def __init__(
        self, pattern: ReportPattern | None = None, metric: str = "", *, is_stderr: bool = False
    ) -> None:
        self._pattern, self._metric, self._is_stderr = pattern, metric, is_stderr
        self.has_matched = self.has_ignored = self.ignores_pattern = False
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._shown = b""
        self._skips = False

    def feed(self, data: bytes) -> Iterator[CommandReport]:
        """
        Yield the reports of the texts and lines that `data` completes.

        Raises:
            InvalidReport: A line contains `[studydb]` or `[tune-metric]:` or matches the pattern,
                but its report is not valid; or a line with such a mark is too long.
        """
        *pieces, rest = _ENDS.split(data)
        if pieces:
            pieces[0] = b"".join((*self._rest, pieces[0]))
            self._rest, self._rest_bytes = [], 0
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._skips and pieces:
            pieces[0] = b""  # the end of a line that was too long
            self._skips = False
        for text, end in zip(pieces[::2], pieces[1::2], strict=True):
            if (report := self._read_marked(text)) is not None:
                self._shown = b""
                yield report
            elif self._pattern is not None and text.strip():
                self._shown = text
            if end == b"\n" and (report := self._read_shown()) is not None:
                yield report
        if self._rest_bytes > LINE_BYTES:
            self._skip()

    def end(self) -> Iterator[CommandReport]:
        """Yield the report of a last line without a newline."""
        return self.feed(b"\n")

    def _skip(self) -> None:
        begin = b"" if self._skips else b"".join(self._rest)
        self._rest, self._rest_bytes, self._shown, self._skips = [], 0, b"", True
        for mark in (_MARK, _TUNE_MARK):
            if mark in begin and not self._is_stderr:
                raise InvalidReport(
                    f"A line with {mark.decode()} has more than {LINE_BYTES} bytes (1 MiB), the "
                    "limit of a report on stdout. Save large arrays and texts with a checkpoint, "
                    "or in a separate file."
                )

    def _read_shown(self) -> CommandReport | None:
        line, self._shown = self._shown.decode(errors="replace"), b""
        if self._pattern is None or not line:
            return None
        if self.ignores_pattern:
            self.has_ignored |= self._pattern.matches(line)
            return None
        found = self._pattern.read(line, self._metric, skips_texts=self._is_stderr)
        self.has_matched |= found is not None
        return found

    def _read_marked(self, text: bytes) -> CommandReport | None:
        if self._is_stderr:
            return None
        _, mark, after = text.partition(_MARK)
        if mark:
            return read_json(after)
        _, mark, after = text.partition(_TUNE_MARK)
        if not mark:
            return None
        report = read_json(after)
        for name in [name for name in report.metrics if name.startswith(_TUNE_OWN)]:
            del report.metrics[name]
        return report
