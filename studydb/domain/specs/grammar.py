r"""
The grammar of values and calls: parameters, schedulers, searchers, stop rules and other specs.

```
value      =  call | list | dict | text | word
call       =  name "(" [ argument { "," argument } [","] ] ")"       ASHA(max_t=27, grace_period=1)
argument   =  [ name "=" ] value             arguments without a name come first
list       =  "[" [ value { "," value } [","] ] "]"
dict       =  "{" [ key ":" value { "," key ":" value } [","] ] "}"
key        =  text | word
name       =  a letter or _, then letters, digits, _ and .
text       =  '"' … '"'  |  "'" … "'"        with the escapes of JSON; \', \x and \U as in Python
word       =  characters other than white space and ( ) [ ] { } , = " '
              (a word directly in a dict cannot contain : either)
```
JSON is part of the grammar, with its words true, false and null and its numbers; True, None and
1_000 are read as in Python. Words such as nan and inf are refused. Any other word is a text, as in
choice(resnet-50, facebook/opt-1.3b). A list or a dict cannot contain a call.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from studydb.domain.canonical import MAX_DEPTH
from studydb.domain.errors import InvalidSpec

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_KEYWORD = re.compile(rf"({_NAME.pattern})\s*=")
_WORD = re.compile(r"""[^\s()\[\]{},="']+""")
_WORD_IN_DICT = re.compile(r"""[^\s()\[\]{},="':]+""")
_CONSTANTS = {"true": True, "false": False, "null": None} | {
    str(value): value for value in (True, False, None)
}
_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
_TEXT = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL) for quote in "\"'"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {
    character: character for character in "\\/\"'"
}
_MAX_DIGITS = 308
_LONGEST_EXCERPT = 60


class Call(Struct, frozen=True):
    """
    A parsed call; it is not executed.

    Attributes:
        name: The name before the "(", or a name alone.
        args: The arguments without a name, each a plain value or a call.
        kwargs: The arguments with a name, each a plain value or a call.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds_call(self) -> bool:
        """Whether an argument is itself a call."""
        return any(isinstance(value, Call) for value in (*self.args, *self.kwargs.values()))


def parse_value(text: str, *, start: int = 0) -> Any:
    """
    Read the value that a text holds from an offset to its end.

    Returns:
        None, a bool, int, float, str, list or dict, or a `Call`.

    Raises:
        InvalidSpec: The text is not a value; the message names the column and what was expected.
    """
    return _Reader(text, start).whole()


def parse_call(text: str) -> Call:
    """
    Read a call such as "ASHA(max_t=27, grace_period=1)"; a name alone is a call without arguments.

    Raises:
        InvalidSpec: The text is not a call; the message names the column and what was expected.
    """
    value = parse_value(text)
    if isinstance(value, Call):
        return value
    if isinstance(value, str) and _NAME.fullmatch(value):
        return Call(value)
    raise misread(text, 0, "a call such as NAME(argument=1)")


def misread(text: str, at: int, expected: str) -> InvalidSpec:
    """
    Make the error for a text that cannot be read.

    Args:
        at: The 0-based offset of the first wrong character; the message counts columns from 1.
    """
    start = max(0, min(at - _LONGEST_EXCERPT // 2, len(text) - _LONGEST_EXCERPT))
    end = start + _LONGEST_EXCERPT
    excerpt = f"{'…' if start else ''}{text[start:end]!r}{'…' if end < len(text) else ''}"
    found = repr(text[at]) if at < len(text) else "the end"
    return InvalidSpec(
        f"Cannot read {excerpt} at column {at + 1}: found {found}, expected {expected}."
    )


class _Reader:
    """Reads a text from left to right; `at` is the 0-based offset of the next character."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def whole(self) -> Any:
        if not self._skip_space_and_peek():
            raise self._error("a value; write '' for empty text")
        value = self._value(depth=0)
        if self._skip_space_and_peek():
            raise self._error("the end; quote text that holds spaces or punctuation")
        return value

    def _error(self, expected: str, *, at: int | None = None) -> InvalidSpec:
        return misread(self.text, self.at if at is None else at, expected)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _skip_space_and_peek(self) -> str:
        """Step over white space; return the next character, "" at the end."""
        self._match(_SPACE)
        return self.text[self.at : self.at + 1]

    def _skip(self, character: str) -> bool:
        found = self._skip_space_and_peek() == character
        self.at += found
        return found

    def _value(self, *, depth: int, in_dict: bool = False) -> Any:
        if depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} levels of nesting")
        match self._skip_space_and_peek():
            case "[":
                return [self._plain(depth + 1) for _ in self._items("]")]
            case "{":
                return self._dict(depth + 1)
            case '"' | "'":
                return self._quoted()
        start = self.at
        word = self._word(in_dict=in_dict)
        if self._skip_space_and_peek() == "(" and _NAME.fullmatch(word):
            return self._call(word, depth + 1)
        return _CONSTANTS[word] if word in _CONSTANTS else self._number_or_text(word, start)

    def _items(self, closing: str) -> Iterator[int]:
        """Step over brackets and commas; yield each offset where the caller reads an item."""
        self.at += 1
        while not self._skip(closing):
            yield self.at
            if self._skip_space_and_peek() != closing and not self._skip(","):
                raise self._error(f"',' or '{closing}'")

    def _dict(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for start in self._items("}"):
            quoted = self.text[start : start + 1] in _TEXT
            key = self._quoted() if quoted else self._word(in_dict=True)
            if key in found:
                raise self._error(f"a new key; {key!r} is already given", at=start)
            if not self._skip(":"):
                raise self._error("':' after the key")
            found[key] = self._plain(depth, in_dict=True)
        return found

    def _plain(self, depth: int, *, in_dict: bool = False) -> Any:
        self._skip_space_and_peek()
        start = self.at
        value = self._value(depth=depth, in_dict=in_dict)
        if isinstance(value, Call):
            raise self._error("a plain value inside a list or dict, not a call", at=start)
        return value

    def _call(self, name: str, depth: int) -> Call:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for start in self._items(")"):
            keyword = self._match(_KEYWORD)
            if keyword is None and kwargs:
                raise self._error(
                    "NAME=value: positional arguments cannot follow named ones", at=start
                )
            if keyword is None:
                args.append(self._value(depth=depth))
            elif keyword[1] in kwargs:
                raise self._error(
                    f"another name, because {keyword[1]!r} is given already", at=start
                )
            else:
                kwargs[keyword[1]] = self._value(depth=depth)
        return Call(name, tuple(args), kwargs)

    def _word(self, *, in_dict: bool) -> str:
        match = self._match(_WORD_IN_DICT if in_dict else _WORD)
        if match is None:
            raise self._error("a value")
        return match[0]

    def _number_or_text(self, word: str, start: int) -> int | float | str:
        if _INTEGER.fullmatch(word):
            if len(word) > _MAX_DIGITS:
                raise self._error(f"an integer of at most {_MAX_DIGITS} digits", at=start)
            return int(word)
        if _NOT_FINITE.fullmatch(word):
            raise self._error("a finite number; quote the word to mean text", at=start)
        if not _FLOAT.fullmatch(word):
            return word
        if math.isinf(number := float(word)):
            raise self._error("a number that a double can hold", at=start)
        return number

    def _quoted(self) -> str:
        start, quote = self.at, self.text[self.at]
        match = _TEXT[quote].match(self.text, start)
        if match is None:
            raise self._error(f"a closing {quote}", at=len(self.text))
        text = _ESCAPE.sub(self._unescape, match[1])
        self.at = match.end()
        try:  # JSON writes a character of more than 16 bits as two escapes
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._error("Unicode text, not half a surrogate pair", at=start) from None

    def _unescape(self, escape: re.Match[str]) -> str:
        code = int(escape[1] or escape[2] or escape[3] or "0", 16)
        known = escape[4] in _ESCAPED if escape[4] else code <= sys.maxunicode
        if not known:
            at = self.at + len("'") + escape.start()
            raise self._error(r"an escape such as \n, \\ or \u00e9", at=at)
        return _ESCAPED[escape[4]] if escape[4] else chr(code)
