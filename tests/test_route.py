"""How long the routes of reads, writes and opening are: calls, modules, and modules that call each other both ways."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import b2array
from b2array import config

PACKAGE = str(Path(b2array.__file__).parent)


class Route(NamedTuple):
    """What an action runs through: frames entered in the package, modules, pairs that call each other."""

    calls: int
    modules: int
    two_way: int


def route(action: Callable[[], object]) -> Route:
    """Follow an action that has been run before, in this thread."""
    calls = 0
    arrows = set()

    def follow(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        here = frame.f_code.co_filename
        if event != "call" or not here.startswith(PACKAGE):
            return
        calls += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        arrows.add((caller.f_code.co_filename if caller else here, here))

    action()
    action()
    # What others have left behind is not to be closed meanwhile.
    gc.collect()
    gc.disable()
    sys.setprofile(follow)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    two_way = sum(start < end and (end, start) in arrows for start, end in arrows)
    return Route(calls, len({end for _, end in arrows}), two_way)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with config.using(threads=1):
        yield


@pytest.fixture
def line(tmp_path: Path) -> Any:
    values = np.random.default_rng(0).normal(size=100)
    b2array.asarray(values, url=tmp_path / "line.b2nd", chunks=(10,), attrs={"x": 1})
    return b2array.open(tmp_path / "line.b2nd", mode="r+")


@pytest.fixture
def cube(tmp_path: Path) -> Any:
    values = np.random.default_rng(0).normal(size=(64, 128, 128))
    b2array.asarray(values, url=tmp_path / "cube.b2nd", chunks=(64, 128, 128), blocks=(16, 32, 32))
    return b2array.open(tmp_path / "cube.b2nd")


def within(found: Route, *ceiling: int) -> None:
    assert all(n <= most for n, most in zip(found, ceiling, strict=True)), f"{found}, at most {ceiling}"


@pytest.mark.parametrize(("cache", "ceiling"), [("off", (44, 11, 0)), ("on", (23, 7, 0))])
def test_a_slice_of_a_line(line: Any, cache: str, ceiling: tuple[int, ...]) -> None:
    with config.using(cache_bytes=2**26 if cache == "on" else 0):
        within(route(lambda: line[1:3]), *ceiling)


@pytest.mark.parametrize(("cache", "ceiling"), [("off", (65, 16, 0)), ("on", (35, 10, 0))])
def test_a_slab_of_sixteen_blocks(cube: Any, cache: str, ceiling: tuple[int, ...]) -> None:
    with config.using(cache_bytes=2**26 if cache == "on" else 0):
        within(route(lambda: cube[1:3]), *ceiling)


@pytest.mark.parametrize(("cache", "ceiling"), [("off", (35, 12, 0)), ("on", (5, 5, 0))])
def test_a_point(cube: Any, cache: str, ceiling: tuple[int, ...]) -> None:
    with config.using(cache_bytes=2**26 if cache == "on" else 0):
        within(route(lambda: cube[1, 2, 3]), *ceiling)


def test_an_assignment(line: Any) -> None:
    values = np.array([5.0, 6.0])

    def assign() -> None:
        line[1:3] = values

    within(route(assign), 495, 37, 0)


def test_a_point_of_a_file_just_opened(cube: Any) -> None:
    # Neither the annotations nor the sizes of blocks are unpacked for it.
    with config.using(cache_bytes=0):
        within(route(lambda: b2array.open(cube.url)[1, 2, 3]), 190, 29, 1)


def test_opening(line: Any) -> None:
    # The last call closes the file.
    within(route(lambda: b2array.open(line.url)), 90, 19, 0)


@pytest.mark.parametrize(("name", "most"), [("fill_value", 2), ("dims", 2)])
def test_what_is_known_of_an_array(line: Any, name: str, most: int) -> None:
    assert route(lambda: getattr(line, name)).calls <= most


def test_an_attribute(line: Any) -> None:
    assert route(lambda: line.attrs["x"]).calls <= 10
