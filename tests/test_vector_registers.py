"""Reading, writing and checksums leave the upper halves of vector registers unused.

While they are in use, some processors execute older instructions many times slower, in NumPy's sums among others. The
processor itself says which are: XGETBV with 1, after VZEROUPPER.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import b2array
from b2array.format import checksums

_UPPER = 1 << 2 | 1 << 6
"""The components of the state that VZEROUPPER clears: upper halves of YMM and of the lower ZMM registers."""
_VZEROUPPER = "c5 f8 77 c3"
_XGETBV_1 = "b9 01 00 00 00 0f 01 d0 48 c1 e2 20 48 09 d0 c3"  # mov ecx, 1; xgetbv; shl rdx, 32; or rax, rdx; ret


def _can_tell() -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return {"avx", "xgetbv1"} <= {*Path("/proc/cpuinfo").read_text("ascii", "replace").split()}


pytestmark = pytest.mark.skipif(not _can_tell(), reason="this processor does not tell")


def _function(code: str, result: Any) -> Callable[[], Any]:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(bytes.fromhex(code))
    function = ctypes.CFUNCTYPE(result)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    return lambda _=memory: function()


@pytest.fixture(scope="module")
def in_use() -> Callable[[Callable[[], object]], int]:
    """A function that calls another one, and returns the upper halves that are in use then."""
    clear, components = _function(_VZEROUPPER, None), _function(_XGETBV_1, ctypes.c_uint64)

    def after(call: Callable[[], object]) -> int:
        clear()
        call()
        found: int = components() & _UPPER
        return found

    if after(lambda: None):
        pytest.skip("Python itself uses them here")
    return after


@pytest.mark.parametrize("nbytes", [1, 50, 100, 1000, 10_000, 10**6])
def test_checksums_leave_vector_registers_clean(in_use: Callable[..., int], nbytes: int) -> None:
    data = memoryview(np.random.default_rng(nbytes).bytes(nbytes))
    assert in_use(lambda: checksums.crc32(data)) == 0
    assert checksums.crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize("codec", ["zstd", "lz4", "lz4hc", "zlib", "blosclz"])
def test_reading_and_writing_leave_vector_registers_clean(in_use: Callable[..., int], codec: str) -> None:
    values = np.arange(100_000.0)
    for filters in (("shuffle",), ("bitshuffle",), ("shuffle", "bytedelta"), ()):
        params = b2array.CParams(codec, filters=filters)
        assert in_use(lambda p=params: b2array.asarray(values, chunks=50_000, blocks=10_000, cparams=p)) == 0
        array = b2array.asarray(values, chunks=50_000, blocks=10_000, cparams=params)
        assert in_use(lambda a=array: a[123:70_000]) == 0
        np.testing.assert_array_equal(array[...], values)
