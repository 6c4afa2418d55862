"""
The upper half of the command line's grammar: values, lists, dicts and calls.

```
value      =  call | list | dict | text | number | true | false | null | word
call       =  name "(" [ argument { "," argument } [","] ] ")"       ASHA(max_t=27, grace_period=1)
argument   =  [ name "=" ] value             those without a name come first
list       =  "[" [ value { "," value } [","] ] "]"
dict       =  "{" [ key ":" value { "," key ":" value } [","] ] "}"
```
JSON is part of it. A word without quotes is a text, as "relu" in choice(relu,tanh). Texts, numbers
and words are described in `scanner`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studydb.domain.canonical import MAX_DEPTH
from studydb.domain.specs.scanner import Scanner

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Call:
    """
    A call as it was written; nothing is called.

    Attributes:
        name: What is to be called: letters, digits, "_" and ".".
        args: Plain values or calls, in order.
        kwargs: The same by name.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def read_all(scanner: Scanner) -> Any:
    """
    Read one value up to the end of the text.

    Raises:
        InvalidSpec: There is none, it is wrong, or something follows it.
    """
    if not scanner.peek():
        raise scanner.error("a value; write '' for empty text")
    value = _Reader(scanner).value(depth=0)
    scanner.finish()
    return value


class _Reader:
    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner

    def value(self, *, depth: int, in_dict: bool = False) -> Any:
        if depth > MAX_DEPTH:
            raise self.scanner.error(f"at most {MAX_DEPTH} levels of nesting")
        match self.scanner.peek():
            case "[":
                return self._list(depth + 1)
            case "{":
                return self._dict(depth + 1)
            case '"' | "'":
                return self.scanner.quoted()
        start = self.scanner.at
        scalar = self.scanner.scalar(in_dict=in_dict)
        name = self.scanner.text[start : self.scanner.at]
        if self.scanner.peek() == "(" and NAME.fullmatch(name):
            return self._call(name, depth + 1)
        return scalar

    def _more(self, closing: str) -> bool:
        """Whether another item follows; steps over the comma and, if not, the closing."""
        if self.scanner.skip(closing):
            return False
        self.scanner.expect(",", expected=f"',' or '{closing}'")
        return not self.scanner.skip(closing)

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self.scanner.skip("[")
        more = not self.scanner.skip("]")
        while more:
            items.append(self._plain(depth))
            more = self._more("]")
        return items

    def _dict(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        self.scanner.skip("{")
        more = not self.scanner.skip("}")
        while more:
            quoted, start = self.scanner.peek() in {'"', "'"}, self.scanner.at
            key = self.scanner.quoted() if quoted else self.scanner.atom(in_dict=True)
            if key in items:
                raise self.scanner.error(f"another key, for {key!r} came before", at=start)
            self.scanner.expect(":", expected="':' after the key")
            items[key] = self._plain(depth, in_dict=True)
            more = self._more("}")
        return items

    def _plain(self, depth: int, *, in_dict: bool = False) -> Any:
        self.scanner.peek()
        start = self.scanner.at
        value = self.value(depth=depth, in_dict=in_dict)
        if isinstance(value, Call):
            raise self.scanner.error("a plain value inside a list or dict, not a call", at=start)
        return value

    def _call(self, name: str, depth: int) -> Call:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        self.scanner.skip("(")
        more = not self.scanner.skip(")")
        while more:
            self._argument(args, kwargs, depth)
            more = self._more(")")
        return Call(name, tuple(args), kwargs)

    def _argument(self, args: list[Any], kwargs: dict[str, Any], depth: int) -> None:
        self.scanner.peek()
        start = self.scanner.at
        name = self._keyword()
        if name in kwargs:
            raise self.scanner.error(f"{name!r} only once", at=start)
        if name is not None:
            kwargs[name] = self.value(depth=depth)
        elif kwargs:
            raise self.scanner.error("a name and '=', as before", at=start)
        else:
            args.append(self.value(depth=depth))

    def _keyword(self) -> str | None:
        start = self.scanner.at
        match = NAME.match(self.scanner.text, start)
        if match is not None:
            self.scanner.at = match.end()
            if self.scanner.skip("="):
                return match[0]
        self.scanner.at = start
        return None
