"""Selections of several arrays that are read together."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import b2array
from b2array import config
from b2array.errors import ChunkMissingError, ConflictError

RNG = np.random.default_rng(0)
DATA = RNG.integers(0, 1000, (90, 100, 80)).astype("f4")
OPTIONS = {"chunks": (30, 50, 40), "blocks": (10, 10, 20)}
KEYS = [
    (3, 4, 5), (slice(10, 40), slice(5, 60), slice(0, 33)), 7, ([1, 80, 3], slice(None), -1), slice(0, 0), Ellipsis,
    (slice(None, None, 9), 50), np.s_[::-5, 3, 3],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _uncached():
    with config.using(cache_bytes=0):
        yield


@pytest.fixture
def served(http, tmp_path):
    """Give a function that puts an array on a server, and returns a handle."""

    def serve(name, data, layout="sparse", **options):
        path = tmp_path / name
        b2array.asarray(data, url=path, layout=layout, **{**OPTIONS, **options})
        files = {name: path} if path.is_file() else {f"{name}/{file.name}": file for file in path.iterdir()}
        http.objects |= {where: file.read_bytes() for where, file in files.items()}
        return b2array.open(http.url_of(name))

    return serve


def same(found, expected) -> bool:
    return type(found) is type(expected) and np.array_equal(found, expected)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_selections_of_arrays_near_and_far_come_in_order(served, tmp_path, layout):
    far, other = served("a", DATA, layout), served("b", DATA + 1, layout)
    near = b2array.asarray(DATA + 2, url=tmp_path / "near", **OPTIONS)
    memory = b2array.asarray(DATA + 3, **OPTIONS)
    view = far.T
    arrays = [(far, DATA), (near, DATA + 2), (other, DATA + 1), (memory, DATA + 3)]
    asked = [(a, key) for key in KEYS for a, _ in arrays] + [(view, 5)]
    expected = [data[key] for key in KEYS for _, data in arrays] + [DATA.T[5]]
    for cache_bytes in (0, 2**26, 2**26):
        with config.using(cache_bytes=cache_bytes):
            found = b2array.read_many(asked)
        assert all(map(same, found, expected))


def test_boxes_of_local_arrays_with_large_blocks_come_in_order(tmp_path):
    data = RNG.integers(0, 1000, (96, 96, 96)).astype("f4")
    a = b2array.asarray(data, url=tmp_path / "a", chunks=96, blocks=48)
    keys = [tuple(slice(n, n + 40) for n in corner) for corner in RNG.integers(0, 56, (12, 3)).tolist()]
    found = b2array.read_many([(a, key) for key in keys])
    assert all(map(same, found, [data[key] for key in keys]))
    with pytest.raises(IndexError):
        b2array.read_many([(a, keys[0]), (a, (200, 0, 0))])


def test_nothing_is_read_for_nothing():
    assert b2array.read_many([]) == []
    with pytest.raises(TypeError, match="pairs of an array and a key"):
        b2array.read_many([(DATA, 3)])
    a = b2array.ones((3, 2))
    slips = {"NDArray": [a], "NDArray, int, int": [(a, 1, 2)], "ndarray": a, "str": {"x": 3}, "int": [3]}
    for found, slip in slips.items():
        with pytest.raises(TypeError, match=rf"pairs of an array and a key, .* found \({found}\)"):
            b2array.read_many(slip)
    with pytest.raises(IndexError):
        b2array.read_many([(b2array.ones((3,)), 5)])


def test_fields_are_read(served):
    data = np.zeros(40, [("x", "i4"), ("y", "f8")])
    data["x"] = np.arange(40)
    a = served("a", data, chunks=10, blocks=5)
    first, both, one = b2array.read_many([(a, "x"), (a, ["y", "x"]), (a, 7)])
    assert np.array_equal(first, data["x"])
    assert np.array_equal(both, data[["y", "x"]])
    assert one == data[7]


def test_sixty_boxes_come_in_one_wave_of_requests(served, http):
    a = served("a", DATA)
    corners = RNG.integers(0, (80, 90, 70), (60, 3))
    asked = [(a, tuple(slice(n, n + 10) for n in corner)) for corner in corners]
    assert http.waves_of(lambda: b2array.read_many(asked)) == 1
    together = len(http.requests)
    http.requests.clear()
    http.depth = 0
    for _, key in asked:
        a[key]
    assert together <= len(http.requests)
    assert all(map(same, b2array.read_many(asked), [DATA[key] for _, key in asked]))


def test_twelve_arrays_come_in_one_wave_and_files_of_other_software_in_two(served, http, tmp_path):
    import blosc2

    arrays = [served(f"a{n}", DATA + n, ("sparse", "contiguous")[n % 2]) for n in range(12)]
    asked = [(a, np.s_[5:20, 10:20, :20]) for a in arrays]
    assert http.waves_of(lambda: b2array.read_many(asked)) == 1
    assert all(same(found, DATA[5:20, 10:20, :20] + n) for n, found in enumerate(b2array.read_many(asked)))
    for n in range(4):
        path = tmp_path / f"stock{n}"
        blosc2.asarray(DATA + n, urlpath=str(path), chunks=(30, 50, 40), blocks=(10, 10, 20), mode="w")
        http.objects[f"stock{n}"] = path.read_bytes()
    fresh = lambda: [(b2array.open(http.url_of(f"stock{n}")), np.s_[5:9, 10:20, 3]) for n in range(4)]  # noqa: E731
    asked = fresh()
    http.depth, http.delay = 0, 0.02
    found = b2array.read_many(asked)
    assert http.depth <= 3
    assert all(same(each, DATA[5:9, 10:20, 3] + n) for n, each in enumerate(found))


def test_what_fails_raises_what_reading_it_alone_raises(served, http):
    a, b = served("a", DATA), served("b", DATA)
    name = b._handle.source.locate(3).name
    del http.objects[f"b/{name}"]
    with pytest.raises(ChunkMissingError, match=f"chunk 3 of {b.url}"):
        b2array.read_many([(a, 5), (b, 5), (b, ...)])


def test_a_state_that_was_replaced_is_a_conflict(served, http, tmp_path):
    a, b = served("a", DATA, "contiguous"), served("b", DATA, "contiguous")
    (tmp_path / "b").unlink()
    served("b", DATA[::-1] * 2, "contiguous")
    with pytest.raises(ConflictError, match="changed since it was opened"):
        b2array.read_many([(a, 5), (b, 5)])


def test_large_selections_are_read_in_bounded_windows(served, http, monkeypatch):
    from b2array.frame import read

    a, b = served("a", DATA), served("b", DATA + 1)
    monkeypatch.setattr(read, "WINDOW_NBYTES", 2**16)
    found = b2array.read_many([(a, ...), (b, ...)])
    assert same(found[0], DATA)
    assert same(found[1], DATA + 1)
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]


def test_a_change_under_way_is_read(tmp_path):
    a = b2array.asarray(DATA, url=f"memory://{tmp_path.name}/a", **OPTIONS)
    with a.transaction():
        a[5] = -1
        (found,) = b2array.read_many([(a, 5)])
    assert (found == -1).all()


def test_members_of_a_group_are_opened_in_one_wave_and_read_in_the_next(http, tmp_path):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    for n in range(8):
        group.create(f"air/x{n}", data=DATA + n, **OPTIONS)
    group.consolidate()
    files = [file for file in (tmp_path / "g.b2d").rglob("*") if file.is_file() and file.suffix != ".b2lock"]
    http.objects |= {f"g.b2d/{file.relative_to(tmp_path / 'g.b2d').as_posix()}": file.read_bytes() for file in files}
    held = b2array.open_group(http.url_of("g.b2d"))
    wanted = {f"air/x{n}": np.s_[n : n + 3, 10:20] for n in range(8)}
    assert held.read_many({}) == {}
    assert http.waves_of(lambda: held.read_many(wanted)) <= 2
    found = held.read_many(wanted)
    assert [*found] == [*wanted]
    assert all(same(found[name], (DATA + n)[wanted[name]]) for n, name in enumerate(wanted))
    inner = held["air"].read_many({"x3": 5})
    assert same(inner["x3"], (DATA + 3)[5])
    with pytest.raises(KeyError, match="no such member"):
        held.read_many({"air/x1": 1, "nothing": 2})
