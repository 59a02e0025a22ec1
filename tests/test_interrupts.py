"""Ctrl-C at any moment leaves an array as it was, or as it should become, and lets the transaction go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import b2array
from b2array import config

_BEFORE = np.random.default_rng(0).integers(0, 2**40, (60, 64))
_OTHER = np.random.default_rng(1).integers(0, 2**40, (60, 64))
_CHANGES: dict[str, Callable[[b2array.NDArray], object]] = {
    "all": lambda a: a.__setitem__(slice(None), _OTHER),
    "box": lambda a: a.__setitem__((slice(10, 50), slice(3, 40)), 7),
    "rows": lambda a: a.__setitem__([3, 30, 50], 9),
    "append": lambda a: a.append(_OTHER[:5]),
    "insert": lambda a: a.insert(_OTHER[:4], 11),
    "delete": lambda a: a.delete(slice(3, 7)),
    "resize": lambda a: a.resize((41, 64)),
}
_POINTS = 20


@pytest.fixture(autouse=True)
def _several_threads_and_little_memory() -> Iterator[None]:
    with config.using(threads=3, write_buffer_bytes=20_000):
        yield


def _interrupted(action: Callable[[], object], moment: int) -> tuple[bool, int]:
    """Raise KeyboardInterrupt where Python looks for signals: as a function begins, and behind a call of C code.

    Return whether the action was interrupted, and how many moments it had.
    """
    passed = 0

    def follow(_: FrameType, event: str, __: object) -> None:
        nonlocal passed
        passed += event in ("call", "c_return")
        if passed == moment:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(follow)
    try:
        action()
    except KeyboardInterrupt:
        return True, passed
    finally:
        sys.setprofile(None)
    return False, passed


def _filled(url: Path | None, layout: str) -> b2array.NDArray:
    placed: dict[str, Any] = {} if url is None else {"url": url, "overwrite": True, "layout": layout}
    return b2array.asarray(_BEFORE, chunks=(16, 16), blocks=(8, 8), **placed)


@pytest.mark.parametrize("layout", ["memory", "contiguous", "sparse"])
@pytest.mark.parametrize("change", _CHANGES)
def test_an_interrupted_change_is_whole_or_undone_and_the_transaction_goes_on(
    change: str, layout: str, tmp_path: Path
) -> None:
    url = None if layout == "memory" else tmp_path / "a"
    expected = _filled(None, layout)
    _, count = _interrupted(lambda: _CHANGES[change](expected), -1)
    after = expected[...]
    for moment in range(1, 2 * count, max(1, 2 * count // _POINTS)):
        array = _filled(url, layout)
        with array.transaction():
            array[20:30, 5:20] = _BEFORE[20:30, 5:20]
            interrupted, _ = _interrupted(lambda: _CHANGES[change](array), moment)  # noqa: B023
            found = array[...]
            assert any(np.array_equal(found, whole) for whole in ((_BEFORE, after) if interrupted else (after,)))
            array[5:9] = found[5:9]
            other = threading.Thread(target=array.__getitem__, args=(slice(1, 3),), daemon=True)
            other.start()
            other.join(30)
            assert not other.is_alive()
        assert np.array_equal(array[...], found)
        if url is not None:
            assert np.array_equal(b2array.open(url)[...], found)
