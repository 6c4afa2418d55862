"""Check that a call is refused, and what the message says."""

import pytest

from studydb.domain.errors import InvalidSpec


def check_refused(words, call, *arguments, error=InvalidSpec):
    with pytest.raises(error) as refused:
        call(*arguments)

    message = str(refused.value)
    assert all(word in message for word in words), message
    return message
