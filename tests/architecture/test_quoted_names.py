"""Commands in messages can be pasted into a shell: names of studies in them are quoted."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from studydb.cli.commands import COMMANDS

PACKAGE = Path(__file__).parents[2] / "studydb"
WITHOUT_A_STUDY = {"completion", "db", "drain", "hello", "query", "report"}
COMMAND = re.compile(
    rf"\bstudydb (?:worker --study|{'|'.join(sorted(COMMANDS.keys() - WITHOUT_A_STUDY))}) $"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_commands_in_messages_quote_the_names_of_studies():
    unquoted = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {value}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "studydb " in (source := path.read_text())
        for line, value in unquoted_names(source)
        if value != "NAME"  # the study of `studydb hello`: a constant without spaces
    ]

    assert not unquoted, f"use shlex.quote(name) in these commands: {unquoted}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("f'`studydb status {study.name}` says why'", ["study.name"]),
        ("f'`studydb worker --study {name}`'", ["name"]),
        ("def f(name):\n  return f'A fact. `studydb stop {name} {number}`'", ["name"]),
        ("def f(name):\n  name = fold(name)\n  return f'`studydb stop {name}`'", ["name"]),
        ("def f(name):\n  shown = shlex.quote(name)\n  return f'`studydb stop {name}`'", ["name"]),
        ("f'`studydb status {shlex.quote(study.name)}` says why'", []),
        ("def f(s):\n  error, name = 1, shlex.quote(s)\n  return f'`studydb stop {name}`'", []),
        ("f'study {study.name!r}: see `studydb workers`, trial {number}'", []),
    ],
)
def test_unquoted_names_are_found(source, found):
    assert [value for _, value in unquoted_names(source)] == found


def unquoted_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and expression of each unquoted name after `studydb COMMAND` in an f-string."""
    yield from _unquoted_in(ast.parse(source), frozenset())


def _unquoted_in(node: ast.AST, quoted: frozenset[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, Function):
        quoted = frozenset(_quoted_variables(node))
    elif isinstance(node, ast.JoinedStr):
        before = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and COMMAND.search(before):
                value = ast.unparse(part.value)
                if not _quotes(part.value) and value not in quoted:
                    yield node.lineno, value
            before = str(part.value) if isinstance(part, ast.Constant) else ""
    for child in ast.iter_child_nodes(node):
        yield from _unquoted_in(child, quoted)


def _quoted_variables(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            (target, value) = (node.targets[0], node.value)
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]
            yield from (ast.unparse(one) for one, given in pairs if _quotes(given))


def _quotes(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "shlex.quote"
