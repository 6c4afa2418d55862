"""
The file to which a command appends reports: each line is read once, when it is complete.

The last read also returns a line without a newline. A file that became shorter is read from its
beginning.
"""

import os

import pytest

from studydb.trainables.command_files import GrowingFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_line_is_read_once_and_only_when_it_is_complete(path):
    file = GrowingFile(path)
    append(path, "one\ntw")
    assert file.read() == [b"one"]
    assert file.read() == []

    append(path, "o\nthree\n")

    assert file.read() == [b"two", b"three"]
    assert file.read() == []


def test_last_read_includes_a_line_without_a_newline(path):
    file = GrowingFile(path)
    append(path, "one\ntw")

    assert file.read(last=True) == [b"one", b"tw"]


def test_file_of_an_earlier_attempt_is_removed(path):
    path.write_text("old\n")

    file = GrowingFile(path)

    assert not path.exists()
    append(path, "new\n")
    assert file.read() == [b"new"]


def test_file_that_became_shorter_is_read_from_its_beginning(path):
    file = GrowingFile(path)
    append(path, "a long line\nand its re")
    file.read()

    path.write_text("new\n")

    assert file.read() == [b"new"]


def test_missing_file_and_fifo_are_read_as_empty(path):
    assert GrowingFile(path).read() == []
    os.mkfifo(path)

    assert GrowingFile(path).read(last=True) == [b""]
