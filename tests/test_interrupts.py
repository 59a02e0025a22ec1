"""Ctrl-C at any moment leaves an array as it was, or as it should become, and lets others and itself go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from interrupts import interrupted, works
from lengths import Sampled

import b2array
from b2array import config
from b2array.commit import handle

# What an interrupted call leaves unfinished, Python finalizes: it closes the file of a lock that nobody has got yet,
# and swallows an interrupt that comes just then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

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


def _filled(url: Path | None, layout: str) -> b2array.NDArray:
    placed: dict[str, Any] = {} if url is None else {"url": url, "overwrite": True, "layout": layout}
    return b2array.asarray(_BEFORE, chunks=(16, 16), blocks=(8, 8), **placed)


@pytest.mark.parametrize("layout", ["memory", "contiguous", "sparse"])
@pytest.mark.parametrize("change", _CHANGES)
def test_an_interrupted_change_is_whole_or_undone_and_the_transaction_goes_on(
    change: str, layout: str, tmp_path: Path, sampled: Sampled
) -> None:
    url = None if layout == "memory" else tmp_path / "a"
    expected = _filled(None, layout)
    _, count = interrupted(lambda: _CHANGES[change](expected), -1)
    after = expected[...]
    for moment in sampled(range(1, 2 * count, max(1, 2 * count // _POINTS)), 24):
        array = _filled(url, layout)
        with array.transaction():
            array[20:30, 5:20] = _BEFORE[20:30, 5:20]
            error, _ = interrupted(lambda: _CHANGES[change](array), moment)  # noqa: B023
            found = array[...]
            assert any(np.array_equal(found, whole) for whole in ((_BEFORE, after) if error else (after,)))
            array[5:9] = found[5:9]
            assert works(lambda: array[1:3])  # noqa: B023
        assert np.array_equal(array[...], found)
        if url is not None:
            assert np.array_equal(b2array.open(url)[...], found)


_LOCKING = {
    "__enter__",
    "__exit__",
    "_attempt",
    "_commit",
    "_last_attempt",
    "_lock_member",
    "_show",
    "_take_lock",
    "commit",
    "lock",
    "locked",
}


def _is_locking(frame: FrameType, _: str) -> bool:
    return frame.f_code.co_name in _LOCKING


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_an_interrupted_commit_leaves_no_lock_and_the_handle_shows_what_the_file_has(
    layout: str, tmp_path: Path, sampled: Sampled
) -> None:
    array = _filled(tmp_path / "a", layout)
    with config.using(durable=False):
        _, count = interrupted(lambda: array.__setitem__((3, 4), 0), -1, _is_locking)
        before = array[3, 4]
        assert (before, count > 20) == (0, True)
        for moment in sampled(range(1, count + 1), 20):
            _kept, _ = interrupted(lambda: array.__setitem__((3, 4), moment), moment, _is_locking)  # noqa: B023
            found = array[3, 4]
            assert found in (before, moment)
            assert found == b2array.open(tmp_path / "a")[3, 4]
            assert works(lambda: array.__setitem__((50, 50), -moment)), moment  # noqa: B023
            before = found
    assert array[50, 50] == -moment


def test_an_interrupted_commit_of_a_group_leaves_no_lock(tmp_path: Path, sampled: Sampled) -> None:
    group = b2array.open_group(tmp_path / "g", mode="w")
    for name in "xy":
        group[name] = np.zeros(3)

    def change(value: int) -> None:
        with group.transaction() as inside:
            for name in "xy":
                inside[name][1] = value

    with config.using(durable=False):
        _, count = interrupted(lambda: change(0), -1, _is_locking)
        assert count > 20
        before = 0
        for moment in sampled(range(1, count + 1), 32):
            _kept, _ = interrupted(lambda: change(moment), moment, _is_locking)  # noqa: B023
            assert works(lambda: group["x"].__setitem__(2, moment)), moment  # noqa: B023
            found = [b2array.open_group(tmp_path / "g")[name][1] for name in "xy"]
            assert found in ([before] * 2, [moment] * 2)
            before = found[0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_that_is_interrupted_at_its_edges_is_over(fails: bool, tmp_path: Path) -> None:
    array = _filled(tmp_path / "a", "contiguous")

    def change(value: int) -> None:
        with suppress(ZeroDivisionError), array.transaction():
            array[3, 4] = value
            if fails:
                raise ZeroDivisionError

    def is_of_handle(frame: FrameType, event: str) -> bool:
        # The harness cannot raise inside a generator where it goes on.
        goes_on = event == "call" and frame.f_lasti > 0 and frame.f_code.co_flags & inspect.CO_GENERATOR
        return frame.f_code.co_filename == handle.__file__ and not goes_on

    with config.using(durable=False):
        _, count = interrupted(lambda: change(0), -1, is_of_handle)
        assert count > 10
        for moment in range(1, count + 1):
            _kept, _ = interrupted(lambda: change(moment), moment, is_of_handle)  # noqa: B023
            array[3, 5] = -moment
            assert array[3, 4:6].tolist() == b2array.open(tmp_path / "a")[3, 4:6].tolist(), moment
