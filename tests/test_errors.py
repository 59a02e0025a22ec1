"""Errors say where they were found, and say it once."""

from __future__ import annotations

import pytest

from b2array.errors import ChunkMissingError, FormatError, located, located_error


def test_errors_say_once_where_they_are():
    def fail():
        raise FormatError("expected this, found that")

    with pytest.raises(FormatError, match=r"^here: expected this, found that$"):
        located("here", lambda: located("here", fail))
    with pytest.raises(ZeroDivisionError):
        located("here", lambda: 1 // 0)
    assert located("here", lambda: 5) == 5
    assert located_error("here", ChunkMissingError("gone")).args == ("here: gone",)
