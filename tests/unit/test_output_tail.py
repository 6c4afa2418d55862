"""
`studydb logs --follow` prints each byte of an attempt's output once, also while files rotate.

A file is missed if, between two reads, it is created and renamed, and the next file is renamed too.
"""

from contextlib import closing

import pytest

from studydb.cli.logs import Tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stdout"


@pytest.fixture
def tail(path):
    with closing(Tail(path)) as tail:
        yield tail


def write(path, data):
    with path.open("ab") as file:
        file.write(data)


def rename(path):
    path.replace(path.with_name(f"{path.name}.1"))


def read(tail):
    return b"".join(tail.read())


def test_output_before_the_first_byte_is_empty(tail):
    assert read(tail) == b""


def test_first_read_yields_the_rotated_file_before_the_new_file(path, tail):
    write(path, b"one ")
    rename(path)
    write(path, b"two")

    assert [read(tail), read(tail)] == [b"one two", b""]


def test_bytes_written_before_a_renaming_are_read_after_it(path, tail):
    write(path, b"one ")
    assert read(tail) == b"one "

    write(path, b"two ")
    rename(path)
    write(path, b"three")

    assert [read(tail), read(tail)] == [b"two three", b""]


@pytest.mark.parametrize("known", [False, True])
def test_rotated_file_is_read_only_once_while_there_is_no_new_file(path, tail, known):
    write(path, b"one ")
    assert not known or read(tail) == b"one "
    rename(path)

    assert [read(tail), read(tail)] == [b"" if known else b"one ", b""]

    write(path, b"two")
    assert [read(tail), read(tail)] == [b"two", b""]


def test_file_that_was_written_and_renamed_between_two_reads_is_read(path, tail):
    write(path, b"one ")
    assert read(tail) == b"one "

    rename(path)
    write(path, b"two ")
    rename(path)
    write(path, b"three")

    assert read(tail) == b"two three"


def test_file_that_is_renamed_while_it_is_read_is_not_read_again(path, tail):
    write(path, b"one ")
    reading = tail.read()
    assert next(reading) == b"one "

    rename(path)
    write(path, b"two")

    assert b"".join(reading) == b""
    assert [read(tail), read(tail)] == [b"two", b""]


def test_file_is_read_once_if_it_cannot_be_opened_for_a_while(path, tail):
    write(path, b"one ")
    rename(path)
    write(path, b"two ")
    assert read(tail) == b"one two "

    path.rename(path.with_name("elsewhere"))
    assert read(tail) == b""
    path.with_name("elsewhere").rename(path)
    write(path, b"three")

    assert read(tail) == b"three"
