"""The entries in scripts/guards match the code."""

import ast
import functools
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

sys.path.append(str(ROOT / "scripts"))

from mutating import guards  # noqa: E402  found only after `sys.path.append`
from mutating.guards import Patch  # noqa: E402

ALL = guards.read()


@pytest.mark.slow
def test_every_entry_finds_its_guard_and_removing_the_guard_changes_the_program():
    wrong = []
    for guard in ALL:
        try:
            wrong += [f"{guard.name}: no change" for sources in mutated(guard) if is_same(*sources)]
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{guard.name}: {error}")

    assert wrong == []


def mutated(guard):
    before = {patch.path: (ROOT / patch.path).read_text() for patch in guard.patches}
    after = dict(before)
    for patch in guard.patches:
        after[patch.path] = patch.apply(after[patch.path])
    return [(before[path], after[path]) for path in before]


def is_same(before, after):
    """Whether two sources are the same program; only statements of different text are compared."""
    old, new = statements(before), statements(after)
    return len(old) == len(new) and all(
        text == other or dumped(node) == ast.dump(changed)
        for (text, node), (other, changed) in zip(old, new, strict=True)
    )


@functools.cache
def dumped(node):
    return ast.dump(node)


@functools.lru_cache(maxsize=500)  # many guards are in the same file
def statements(source):
    """The text and the node of each top-level statement of a module."""
    lines = source.splitlines()
    nodes = ast.parse(source).body
    ends = [node.end_lineno for node in nodes]
    return [
        ("\n".join(lines[begin:end]), node)
        for begin, end, node in zip([0, *ends], ends, nodes, strict=False)
    ]


def test_names_of_guards_are_unique():
    names = Counter(guard.name for guard in ALL)

    assert [name for name, n in names.items() if n > 1] == []


def test_every_guard_names_tests_that_exist():
    missing = []
    for place in guards.paths(test for guard in ALL for test in [*guard.tests, *guards.LAST_FILES]):
        path, _, name = place.partition("::")
        function = re.sub(r"\[.*", "", name.rpartition("::")[2])
        if f"def {function}" not in (ROOT / path).read_text():
            missing.append(place)

    assert missing == []


SOURCE = """
FENCE = (
    a == b,  # the first
    c,
)

class Lease:
    def hold(self):
        if (c and
                d):
            return 1
        return c

def hold():
    return c
"""


@pytest.mark.parametrize(
    ("function", "old", "new", "line"),
    [
        ("FENCE", "a==b,", "", "      # the first"),
        ("FENCE", "a == b, c)", "c)", "    c)"),
        ("Lease.hold", "if (c and d):", "if True:\n    pass", "        if True:\n            pass"),
        ("Lease.hold", "return c", "pass", "        pass"),
        ("hold", "return c", "", "    "),
        ("", "class Lease:", "class Held:", "class Held:"),
    ],
)
def test_guard_is_found_although_its_entry_has_other_line_breaks(function, old, new, line):
    after = Patch("a.py", function, old, new).apply(SOURCE)

    assert f"\n{line}\n" in after


@pytest.mark.parametrize(
    ("function", "old", "n"),
    [
        ("", "return c", 2),
        ("Lease", "return d", 0),
        ("other", "return c", 0),
        ("FENCE", "a == bb", 0),
    ],
)
def test_guard_that_is_missing_or_found_twice_is_an_error(function, old, n):
    with pytest.raises(ValueError, match=f"{n} times, not once"):
        Patch("a.py", function, old, "").apply(SOURCE)
