"""Errors say where they were found, and say it once."""

from __future__ import annotations

import numpy as np
import pytest

import b2array
from b2array.errors import ChecksumError, ChunkMissingError, FormatError, prefix_error, prefix_errors


def test_errors_say_once_where_they_are():
    def fail():
        raise FormatError("expected this, found that")

    with pytest.raises(FormatError, match=r"^here: expected this, found that$"):
        prefix_errors("here", lambda: prefix_errors("here", fail))
    with pytest.raises(ZeroDivisionError):
        prefix_errors("here", lambda: 1 // 0)
    assert prefix_errors("here", lambda: 5) == 5
    assert prefix_error("here", ChunkMissingError("gone")).args == ("here: gone",)


def test_an_error_is_not_its_own_cause(tmp_path):
    array = b2array.asarray(np.random.default_rng(0).normal(size=1000), url=tmp_path / "a.b2nd")
    with (tmp_path / "a.b2nd").open("r+b") as file:
        file.seek(array._handle.source.locate(0).start + 500)
        file.write(bytes(4))
    with pytest.raises(ChecksumError) as caught:
        array[3] = 5
    error = caught.value
    while error is not None:
        assert error.__cause__ is not error
        error = error.__cause__
