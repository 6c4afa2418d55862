"""Errors about the first line of a script: Windows line ends, or why the script does not start."""

import pytest

from studydb.domain.errors import TrainableError
from studydb.trainables.interpreter import refuse_windows_line_ends, why_not_started


@pytest.fixture
def program(tmp_path):
    def write(content):
        path = tmp_path / "train"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("line", [b"#!/bin/sh\r", b"#! /bin/sh\r", b"#!/usr/bin/env python3\r"])
def test_interpreter_that_ends_in_a_carriage_return_is_refused(program, line):
    with pytest.raises(TrainableError, match="Windows line ends"):
        refuse_windows_line_ends(program(line + b"\n"))


@pytest.mark.parametrize(
    "content", [b"#!/bin/sh\n\r\n", b"#!/usr/bin/perl -w\r\n", b"\x7fELF\r\n", b"", b"#!"]
)
def test_other_programs_are_accepted(program, content):
    refuse_windows_line_ends(program(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\r\n", "has Windows line ends"),
        (b"#!\t/no/such/shell -e\n", "names the interpreter '/no/such/shell', which"),
        (b"\x7fELF", "dynamic loader"),
    ],
)
def test_reason_why_a_program_does_not_start_is_found_in_its_first_line(program, content, words):
    assert words in why_not_started(program(content))
