"""Items from memory into chunks: what is encoded, and what a write leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import b2array
from b2array.codec import encode as encoder
from b2array.commit import write


def test_a_write_that_fails_in_one_chunk_changes_none(monkeypatch):
    array = b2array.asarray(np.arange(400), chunks=100, blocks=50)
    encode, calls = encoder.encode, []

    def failing(buf, **options):
        calls.append(len(calls))
        if len(calls) == 3:
            raise MemoryError
        return encode(buf, **options)

    monkeypatch.setattr(encoder, "encode", failing)
    with array.transaction():
        with pytest.raises(MemoryError):
            array[...] = -1
        assert array[...].tolist() == list(range(400))
    assert array[...].tolist() == list(range(400))


def test_a_chunk_that_is_covered_is_not_read(monkeypatch):
    array = b2array.asarray(np.arange(400), chunks=100, blocks=50)
    fetched = []
    original = write.fetch
    monkeypatch.setattr(write, "fetch", lambda target, wanted: fetched.extend(wanted) or original(target, wanted))
    array[50:310] = 7
    assert sorted(request.chunk for request in fetched) == [0, 3]
    assert array[...].tolist() == [*range(50), *[7] * 260, *range(310, 400)]


def test_nothing_of_the_memory_before_is_written_into_padding():
    array = b2array.zeros((5, 7), "i4", chunks=(4, 4), blocks=(3, 3))
    np.full(2**16, 0x55, np.uint8)
    array[...] = 1
    for n in range(4):
        chunk = np.frombuffer(b2array.decompress(array.get_chunk(n)), "i4")
        assert set(chunk.tolist()) <= {0, 1}
        assert chunk.sum() == array.chunk_view[divmod(n, 2)].sum()
