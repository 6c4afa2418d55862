"""The names of processes, as `ps` shows them."""

import os
import sys
from collections.abc import Iterator

import pytest

from studydb.processes import name_process, process_name


@pytest.fixture(autouse=True)
def own_name() -> Iterator[str]:
    name = process_name()
    yield name
    name_process(name)


@pytest.mark.skipif(sys.platform != "linux", reason="names of processes are set on Linux only")
def test_name_that_linux_has_cut_inside_a_character_can_be_set_again():
    name_process("fourteen-bytesä")  # Linux keeps 15 bytes, and cuts the second byte of "ä" off
    name = process_name()
    name_process("other")
    name_process(name)
    assert process_name() == name
    assert len(os.fsencode(name)) == 15
