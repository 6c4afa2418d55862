"""Formatting of numbers and texts for people, on a terminal and in files."""

import math
import re

from studydb.domain.life.states import Mode
from studydb.domain.number_names import number_name

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_MINUTE_S, _HOUR_S = 60, 3600

DIGITS = 6
"""Significant digits of a number for people; JSON and CSV have all digits."""

SHORT_ID = 8
"""How many characters of a worker's id are shown to people; `drain` accepts the shortened id."""


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: "1 trial", "2 trials"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_article(noun: str) -> str:
    """Put the article before a noun, such as a type's name: "a str", "an int", "a uint8"."""
    return f"an {noun}" if noun[:1].lower() in "aeio" else f"a {noun}"


def visible(text: str, *, keep: str = "") -> str:
    """Escape unprintable characters, which could control a terminal, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escaped(character)
        for character in text
    )


def printed(text: str) -> str:
    """
    Remove colours from output; escape unprintable characters except tabs and line breaks.

    A carriage return becomes a line break.
    """
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return visible(lines, keep="\n\t")


def without_controls(text: str) -> str:
    """Escape the controls of terminals and of text direction, except tabs and line breaks."""
    return _CONTROLS.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shortened(text: str, limit: int) -> str:
    """Cut a text that has more than `limit` characters, and add an ellipsis."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def value_text(value: float | None) -> str:
    """
    Write a value with up to six significant digits; write None as "none".

    Infinities and NaN are written as PostgreSQL writes them.
    """
    if value is None:
        return "none"
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else number_name(value)


def best_text(best_value: float | None, mode: str) -> str:
    """
    Write the best value so far; if it is the worst possible value, say that none is finite.

    Args:
        mode: "min" or "max". If smaller values are better, Infinity is the worst possible value,
            and -Infinity is better than every finite value.
    """
    if best_value is None:
        return "none yet"
    if best_value == (math.inf if mode == Mode.MIN else -math.inf):
        return f"none finite yet ({value_text(best_value)})"
    return value_text(best_value)


def size_text(size_bytes: int) -> str:
    """Write a number of bytes for people: 512 B, 1.5 MiB, 12 GiB."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1023.5 and len(units) > 1:  # noqa: PLR2004  1023.5 KiB would be shown as 1024
        size, units = size / 1024, units[1:]
    return f"{size:.3g} {units[0]}" if size < 99.95 else f"{size:.0f} {units[0]}"  # noqa: PLR2004


def duration_text(seconds: float) -> str:
    """Write a duration for people: 12 s, 3 min 5 s, 2 h 7 min."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
