"""How long the routes of reads, writes and opening are: functions called, modules that they are in, both-way pairs.

    python asv_bench/routes.py [--pairs]

Each action runs twice before it is followed, so that the parts that are made once are there. A pair is two modules that
call each other on one route; `tests/test_route.py` allows none but those that it names, outside of groups. A climb is
a call from a module into a higher package, through an object or a function that the module was given; the same test
names each climb of a group's commit, on a disk and in an object store. The counts show what a change costs where no
time can be measured; the same test limits the counts of writes.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

import b2array
from b2array import config

PACKAGE = Path(b2array.__file__).parent
KEPT = 64 * 2**20

LAYERS = (
    ("grid",),
    ("codec",),
    ("store",),
    ("format",),
    ("frame", "bloscpack"),
    ("catalog", "display"),
    ("commit",),
    ("compute",),
    ("array",),
    ("group",),
    ("xarray_io", "exchange"),
    ("tools",),
)
"""The packages, the lowest first. Other modules, such as `threads`, call what they are given, and never climb."""
HEIGHTS = {package: height for height, packages in enumerate(LAYERS) for package in packages}


class Route(NamedTuple):
    """The frames that an action enters in the package, and the modules that they are in.

    `pairs` has the modules that call each other, `climbs` the caller and the callee of each call into a package above.
    """

    calls: int
    modules: int
    pairs: frozenset[tuple[str, str]]
    climbs: frozenset[tuple[str, str]]


class Action(NamedTuple):
    """Something to follow, and the size of the cache meanwhile."""

    run: Callable[[], object]
    cache_bytes: int = 0


def route(action: Callable[[], object]) -> Route:
    """Follow an action, in this thread."""
    calls = 0
    arrows = set()
    prefix = f"{PACKAGE}/"

    def follow(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        here = frame.f_code.co_filename
        if event != "call" or not here.startswith(prefix):
            return
        calls += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(prefix):
            caller = caller.f_back
        arrows.add((caller.f_code.co_filename if caller else here, here))

    action()
    action()
    # Objects that others have left behind are not to be closed meanwhile.
    gc.collect()
    gc.disable()
    sys.setprofile(follow)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    pairs = {(_module(start), _module(end)) for start, end in arrows if start < end and (end, start) in arrows}
    named = {(_module(start), _module(end)) for start, end in arrows}
    climbs = {(start, end) for start, end in named if _height(start) < _height(end)}
    return Route(calls, len({end for _, end in arrows}), frozenset(pairs), frozenset(climbs))


def _height(module: str) -> float:
    """Return the height of a module's package; nan, which compares with nothing, for a module outside of them."""
    return HEIGHTS.get(module.partition(".")[0], math.nan)


def _module(path: str) -> str:
    return ".".join(Path(path).relative_to(PACKAGE).with_suffix("").parts)


def actions(directory: Path) -> dict[str, Action]:
    """Write two arrays, and return what is done with them, by name."""
    random = np.random.default_rng(0)
    b2array.asarray(random.normal(size=100), url=directory / "line.b2nd", chunks=(10,), attrs={"x": 1})
    values = random.normal(size=(64, 128, 128))
    b2array.asarray(values, url=directory / "cube.b2nd", chunks=values.shape, blocks=(16, 32, 32))
    line: Any = b2array.open(directory / "line.b2nd", mode="r+")
    cube: Any = b2array.open(directory / "cube.b2nd")
    reads: dict[str, Callable[[], object]] = {
        "slice of a line": lambda: line[1:3],
        "slab of sixteen blocks": lambda: cube[1:3],
        "point": lambda: cube[1, 2, 3],
    }
    found = {name: Action(run) for name, run in reads.items()}
    found |= {f"{name}, cached": Action(run, KEPT) for name, run in reads.items()}
    new = np.array([5.0, 6.0])
    return found | {
        "assignment": Action(lambda: line.__setitem__(slice(1, 3), new)),
        "point of a file just opened": Action(lambda: b2array.open(cube.url)[1, 2, 3]),
        # The last call closes the file.
        "open": Action(lambda: b2array.open(line.url)),
        "fill value": Action(lambda: line.fill_value),
        "dims": Action(lambda: line.dims),
        "attribute": Action(lambda: line.attrs["x"]),
    }


def group_actions(directory: Path) -> dict[str, Action]:
    """Make groups of two arrays, and return what is done with them, by name: on a disk, and in memory.

    In memory, a group is committed as in an object store.
    """
    in_memory = f"memory://routes-{uuid4().hex}.b2d"
    found: dict[str, Action] = {}
    for url, where in ((str(directory / "group.b2d"), ""), (in_memory, " in an object store")):
        group = b2array.open_group(url, "w")
        for name in ("a", "b"):
            group[name] = np.arange(1000.0)
        for name, run in _changes_of(group).items():
            found[name + where] = Action(run)
    return found


def _changes_of(group: b2array.Group) -> dict[str, Callable[[], object]]:
    """Return changes of a group of two arrays, by name."""
    new = np.array([5.0, 6.0])

    def change_both() -> None:
        with group.transaction() as changes:
            changes["a"][1:3] = new
            changes["b"][1:3] = new

    def replace() -> None:
        group.create("c", data=new, overwrite=True)

    return {
        "assignment to a member": lambda: group["a"].__setitem__(slice(1, 3), new),
        "transaction of two members": change_both,
        "replacement of a member": replace,
    }


def routes(directory: Path) -> dict[str, Route]:
    """Follow each of the actions, in one thread."""
    found = {}
    for name, action in (actions(directory) | group_actions(directory)).items():
        with config.using(threads=1, cache_bytes=action.cache_bytes):
            found[name] = route(action.run)
    return found


def main() -> None:
    """Follow and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", action="store_true", help="name the modules that call each other, and climbs")
    arguments = parser.parse_args()
    print(f"{'':<46}{'calls':>7}{'modules':>9}{'pairs':>7}{'climbs':>8}")
    with tempfile.TemporaryDirectory() as directory:
        for name, found in routes(Path(directory)).items():
            counts = f"{found.calls:>7}{found.modules:>9}{len(found.pairs):>7}{len(found.climbs):>8}"
            print(f"{name:<46}{counts}")
            if arguments.pairs:
                for pair in sorted(found.pairs):
                    print("    " + " <-> ".join(pair))
                for climb in sorted(found.climbs):
                    print("    " + " -> ".join(climb))


if __name__ == "__main__":
    main()
