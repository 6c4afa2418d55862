"""
The lower half of the command line's grammar: characters, texts and numbers, with their columns.

```
text    =  '"' … '"'  |  "'" … "'"          with the escapes of JSON and Python
atom    =  characters other than white space and ( ) [ ] { } , = " '   (inside { } also :)
number  =  an atom such as 3, -2, 1_000, 0.5, 1e-4
```
"""

import math
import re
import sys
from typing import Any

from studydb.domain.errors import InvalidSpec

_SPACE = re.compile(r"\s*")
_ATOM = {
    False: re.compile(r"""[^\s()\[\]{},="']+"""),
    True: re.compile(r"""[^\s()\[\]{},="':]+"""),
}
_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_PLAIN = re.compile(r"""[^\\"']+""")
_ESCAPE = re.compile(
    r"""\\(?:u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|x(?P<x>[0-9a-fA-F]{2})|(?P<c>[\\"'/bfnrt]))"""
)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_DIGITS = 308
_EXCERPT = 60


class Scanner:
    """
    A place in a text that only moves forward.

    Attributes:
        text: All that the user wrote.
        at: 0-based offset of the next character.
    """

    def __init__(self, text: str, at: int = 0) -> None:
        """Begin at an offset; what is before it is only shown in errors."""
        self.text, self.at = text, at

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def skip(self, character: str) -> bool:
        """Step over one character if it comes next."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str, *, expected: str) -> None:
        """
        Step over one character.

        Raises:
            InvalidSpec: Another comes next.
        """
        if not self.skip(character):
            raise self.error(expected)

    def finish(self) -> None:
        """
        Check that nothing is left.

        Raises:
            InvalidSpec: Something is.
        """
        if self.peek():
            raise self.error("the end; quote text that holds spaces or punctuation")

    def error(self, expected: str, *, at: int | None = None) -> InvalidSpec:
        """An error that names the text, the column (1-based) and what should have been there."""
        at = self.at if at is None else at
        start = max(0, min(at - _EXCERPT // 2, len(self.text) - _EXCERPT))
        excerpt = self.text[start : start + _EXCERPT]
        found = repr(self.text[at]) if at < len(self.text) else "the end"
        return InvalidSpec(
            f"Cannot read {'…' if start else ''}{excerpt!r}"
            f"{'…' if start + _EXCERPT < len(self.text) else ''} at column {at + 1}: "
            f"found {found}, expected {expected}."
        )

    def atom(self, *, in_dict: bool = False) -> str:
        """
        Read a word or number without quotes.

        Raises:
            InvalidSpec: None stands here.
        """
        self.peek()
        match = _ATOM[in_dict].match(self.text, self.at)
        if match is None:
            raise self.error("a value")
        self.at = match.end()
        return match[0]

    def quoted(self) -> str:
        """
        Read a text in single or double quotes.

        Raises:
            InvalidSpec: It does not end, or has an unknown escape.
        """
        opening, start = self.peek(), self.at
        self.at += 1
        parts: list[str] = []
        while (character := self.text[self.at : self.at + 1]) != opening:
            if not character:
                raise self.error(f"a closing {opening}")
            parts.append(self._piece(character))
        self.at += 1
        return self._join_surrogates("".join(parts), start)

    def _piece(self, character: str) -> str:
        if character == "\\":
            return self._escape()
        match = _PLAIN.match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        return match[0] if match else character

    def _escape(self) -> str:
        match = _ESCAPE.match(self.text, self.at)
        code = match and (match["u"] or match["U"] or match["x"])
        if match is None or (code and int(code, 16) > sys.maxunicode):
            raise self.error(r"an escape such as \n, \\ or \u00e9")
        self.at = match.end()
        return chr(int(code, 16)) if code else _ESCAPED.get(match["c"], match["c"])

    def _join_surrogates(self, text: str, start: int) -> str:
        """JSON writes what is beyond 16 bits as two escapes."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self.error("Unicode text, not half a surrogate pair", at=start) from None

    def scalar(self, *, in_dict: bool = False) -> Any:
        """
        Read a number, true, false, null, or a bare word, which is a text.

        Raises:
            InvalidSpec: None stands here, or a number that JSON cannot hold.
        """
        word = self.atom(in_dict=in_dict)
        start = self.at - len(word)
        if word in _WORDS:
            return _WORDS[word]
        if _INTEGER.fullmatch(word):
            return self._integer(word, start)
        if _NOT_FINITE.fullmatch(word):
            raise self.error("a finite number; quote the word to mean text", at=start)
        if not _FLOAT.fullmatch(word):
            return word
        if math.isinf(number := float(word)):
            raise self.error("a number that a double can hold", at=start)
        return number

    def _integer(self, word: str, start: int) -> int:
        if len(word) > _MAX_DIGITS:
            raise self.error(f"an integer of at most {_MAX_DIGITS} digits", at=start)
        return int(word)
