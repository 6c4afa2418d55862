"""
Lays out statements for people: a line per clause and condition, long subqueries indented.

It handles the SQL that this project sends, not all of SQL.
"""

import re
import textwrap

WIDTH = 96
SHORT = 60
"""The number of characters above which a subquery is broken into lines."""

INDENT = "    "

_TOKEN = re.compile(r"(\s*)('(?:[^']|'')*'|[(),]|[^\s(),']+)")
_QUERIES = frozenset(("WITH", "SELECT", "INSERT", "UPDATE", "DELETE"))
_CLAUSES = _QUERIES | {
    *("SET", "VALUES", "RETURNING", "FROM", "JOIN", "LEFT", "WHERE", "UNION"),
    *("GROUP", "ORDER", "LIMIT", "OFFSET", "FOR"),
}
_CONTINUED = frozenset(("FOR", "KEY", "DELETE", "DISTINCT", "LEFT", "OUTER"))
"""No new line begins directly after these words, as in FOR UPDATE and IS DISTINCT FROM."""

_SPACE = "\0"
"""Stands for a space within a text constant, at which no line may break."""


def layout(sql: str) -> str:
    """Break a statement into lines, and end it with a semicolon."""
    page = _Page([(bool(found[1]), found[2]) for found in _TOKEN.finditer(sql)])
    page.query(depth=0)
    return "\n".join(page.lines).replace(_SPACE, " ") + ";"


class _Page:
    """The finished lines, the text of the current line, and the tokens that are left."""

    def __init__(self, tokens: list[tuple[bool, str]]) -> None:
        self.lines: list[str] = []
        self._tokens, self._position = tokens, 0
        self._text, self._depth = "", 0

    def query(self, depth: int) -> None:
        """Write the tokens up to the parenthesis that closes this query, or up to the end."""
        clause, before = "", ""
        self._depth = depth
        while (token := self._peek()) not in ("", ")"):
            if token in _CLAUSES and before not in _CONTINUED:
                self._break(depth)
                clause = token
            elif token in ("AND", "OR") and clause in ("WHERE", "JOIN", "LEFT"):
                self._break(depth + 1)
            self._write(depth)
            if token == "," and clause in ("WITH", "SET"):
                self._break(depth + (clause == "SET"))
            before = token
        self._break(depth)

    def _write(self, depth: int) -> None:
        """Write one token; if it opens a parenthesis, write all tokens up to the closing one."""
        after_space, token = self._tokens[self._position]
        self._position += 1
        text = token.replace(" ", _SPACE)
        self._text += f" {text}" if after_space and self._text else text
        if token != "(":
            return
        if self._peek() in _QUERIES and not self._is_short():
            opened_at = self._depth
            self._break(opened_at)
            self.query(opened_at + 1)
            self._depth = opened_at
        while self._peek() != ")":
            self._write(depth)
        self._text += ")"
        self._position += 1

    def _is_short(self) -> bool:
        """Whether the tokens up to the closing parenthesis have at most SHORT characters."""
        length, open_ = 0, 1
        for after_space, token in self._tokens[self._position :]:
            length += len(token) + after_space
            open_ += {"(": 1, ")": -1}.get(token, 0)
            if not open_:
                return True
            if length > SHORT:
                return False
        return True

    def _peek(self) -> str:
        return self._tokens[self._position][1] if self._position < len(self._tokens) else ""

    def _break(self, depth: int) -> None:
        """End the line; the next line is indented to this depth."""
        first = INDENT * self._depth
        self.lines += textwrap.wrap(
            self._text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=first + INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._text, self._depth = "", depth
