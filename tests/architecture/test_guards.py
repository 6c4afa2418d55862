"""The list of guards that scripts/mutations removes stays one of the code as it is."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = tomllib.loads((ROOT / "scripts" / "guards.toml").read_text())


def test_every_guard_stands_where_the_list_says_once():
    patches = [
        (guard["name"], patch["path"], patch["old"])
        for guard in LIST["guard"]
        for patch in (guard, *guard.get("also", ()))
    ]

    found = [(name, (ROOT / path).read_text().count(old)) for name, path, old in patches]

    assert [(name, n) for name, n in found if n != 1] == []


def test_every_guard_has_a_name_of_its_own_and_tests_that_exist():
    names = [guard["name"] for guard in LIST["guard"]]
    files = {name: ROOT / place for name, place in LIST["files"].items()}

    assert len(set(names)) == len(names)
    assert [name for name, place in files.items() if not place.exists()] == []
    assert {name for guard in LIST["guard"] for name in guard["tests"]} <= files.keys()
    assert set(LIST["rest"]) <= files.keys()
