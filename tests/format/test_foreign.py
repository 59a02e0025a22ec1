"""Files without a frame are named by their first bytes."""

from __future__ import annotations

import pytest

from b2array.errors import FormatError
from b2array.format.foreign import describe
from b2array.format.frame_header import unpack_header


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "an empty file"),
        (b"x,y\n1,2\n", r"text, b'x,y\n1,2\n'"),
        (b"\0\1", r"b'\x00\x01'"),
        (b"CDF\1", "a netCDF file of version 3, which b2array.convert reads"),
        (b"PK\3\4" + bytes(26) + b"a.npy", "a .npz file, which numpy.load opens"),
        (b"PK\5\6", "a zip archive; b2array.open opens those of python-blosc2 (.b2z)"),
    ],
)
def test_files_of_other_kinds_are_named(content: bytes, name: str) -> None:
    assert describe(content) == name
    with pytest.raises(FormatError) as caught:
        unpack_header(content)
    assert str(caught.value) == f"expected a Blosc2 frame, found {name}"
