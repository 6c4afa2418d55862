"""How numbers of things, and texts that others wrote, are put before people."""

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def counted(number: int, noun: str) -> str:
    """Count things: "1 trial", "2 trials"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible(text: str, *, keep: str = "") -> str:
    """
    Text without line breaks and control characters, which could steer a terminal.

    Args:
        keep: Characters that stay as they are, such as a line break.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escaped(character)
        for character in text
    )


def printed(text: str) -> str:
    """What a program has printed, line by line: without colours, and nothing that steers."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return visible(lines, keep="\n\t")


def without_controls(text: str) -> str:
    """Text for a file that may be printed on a terminal: tabs and line breaks stay."""
    return _CONTROLS.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
