"""`verify`, `repair`, `vacuum` and `repack` on object stores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from clouds import Cloud

import b2array
from b2array import config
from b2array.errors import ChunkMissingError, ConflictError, FormatError
from b2array.tools import repair

LAYOUTS = ("contiguous", "sparse")
ROWS, WIDTH = 40, 16


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_bytes", 0)


@pytest.fixture(autouse=True)
def _one_file_is_written_anew() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*rewritten with every change")
        yield


class Bucket:
    """An array in a bucket, and the objects that it is made of."""

    def __init__(self, cloud: Cloud, bucket: str, layout: str) -> None:
        self.fs = cloud.fs
        self.url = f"{bucket}/a.b2nd"
        self.root = self.url.partition("://")[2]
        self.kw = {"storage_options": cloud.options}
        self.data = np.random.default_rng(0).random((ROWS, WIDTH))
        make = {"chunks": (8, WIDTH), "blocks": (2, 8), "attrs": {"unit": "K"}}
        b2array.asarray(self.data, url=self.url, layout=layout, **make, **self.kw)
        held = b2array.open_schunk(self.url, **self.kw)
        self.places = [held._handle.source.locate(n) for n in range(held.nchunks)]
        self.index = f"{self.root}/chunks.b2frame" if layout == "sparse" else self.root
        self.tail_start = held.frame.tail_start

    def objects(self) -> dict[str, bytes]:
        return {
            path.removeprefix(self.root): self.fs.cat_file(path) for path in self.fs.find(self.root[: -len("/a.b2nd")])
        }

    def chunk_object(self, n: int) -> str:
        return f"{self.root}/{self.places[n].name}".rstrip("/")

    def flip(self, path: str, at: int) -> None:
        raw = bytearray(self.fs.cat_file(path))
        raw[at] ^= 0x10
        self.fs.pipe_file(path, bytes(raw))

    def open(self, mode: str = "r") -> b2array.NDArray:
        return b2array.open(self.url, mode, **self.kw)

    def verify(self) -> b2array.tools.verify.Report:
        return b2array.verify(self.url, deep=True, **self.kw)

    def repair(self, **options: object) -> b2array.tools.repair.Repair:
        return b2array.repair(self.url, **options, **self.kw)

    def vacuum(self, **options: object) -> b2array.tools.vacuum.Cleanup:
        return b2array.vacuum(self.url, **options, **self.kw)


@pytest.fixture(params=LAYOUTS)
def stored(request: pytest.FixtureRequest, cloud_of: Callable[[str], Cloud], bucket: str) -> Bucket:
    return Bucket(cloud_of("s3"), f"s3://{bucket}", request.param)


@pytest.fixture
def sparse(cloud: Cloud, cloud_url: str) -> Bucket:
    return Bucket(cloud, cloud_url, "sparse")


@pytest.mark.costly
def test_what_is_in_order_is_not_touched(stored):
    before = stored.objects()
    report = stored.verify()
    assert report.ok
    assert (report.checked, report.orphans, report.leftovers) == (5, (), ())
    assert not stored.repair().changed
    assert stored.vacuum(grace=0).removed == ()
    assert stored.objects() == before


@pytest.mark.costly
def test_a_damaged_chunk_is_found_and_lost_and_may_be_written_again(stored):
    stored.flip(stored.chunk_object(2), stored.places[2].start + 300)
    before = stored.objects()
    assert [(problem.kind, problem.chunk) for problem in stored.verify().problems] == [("checksum", 2)]
    dry = stored.repair(dry_run=True)
    assert (dry.lost, dry.changed, dry.backup) == ((2,), True, None)
    assert stored.objects() == before
    result = stored.repair()
    assert result.lost == (2,)
    after = stored.objects()
    assert after[result.backup.removeprefix(stored.url)] == before[stored.index.removeprefix(stored.root)]
    a = stored.open("r+")
    assert a.attrs["unit"] == "K"
    with pytest.raises(ChunkMissingError, match="chunk 2 of"):
        a[...]
    np.testing.assert_array_equal(a[:16], stored.data[:16])
    np.testing.assert_array_equal(a[24:], stored.data[24:])
    assert [problem.kind for problem in stored.verify().problems] == ["lost"]
    a[16:24] = stored.data[16:24]
    assert stored.verify().ok
    np.testing.assert_array_equal(stored.open()[...], stored.data)


@pytest.mark.costly
@pytest.mark.parametrize("where", ["header", "end"])
def test_damage_of_the_index_object_is_undone(stored, where):
    stored.flip(stored.index, {"header": 60, "end": -3}[where])
    assert [problem.kind for problem in stored.verify().problems] == ["frame"]
    with pytest.raises(FormatError):
        stored.open()
    assert stored.repair(dry_run=True).changed
    with pytest.raises(FormatError):
        stored.open()
    result = stored.repair(backup=False)
    assert (result.lost, result.certain, result.backup) == ((), True, None)
    np.testing.assert_array_equal(stored.open()[...], stored.data)
    assert stored.verify().ok


@pytest.mark.costly
def test_a_damaged_index_is_not_believed_without_leave(stored):
    stored.flip(stored.index, stored.tail_start + 34)  # in the offset of the first chunk
    with pytest.raises(FormatError, match="trust_order=True"):
        stored.repair()
    assert set(stored.repair(trust_order=True).lost) <= {0}
    np.testing.assert_array_equal(stored.open()[8:], stored.data[8:])


def test_a_repair_does_not_overwrite_what_another_writer_commits_meanwhile(sparse, monkeypatch):
    sparse.flip(sparse.chunk_object(2), 300)
    inspect = repair.inspect

    def inspect_and_write(*args, **options):
        found = inspect(*args, **options)
        sparse.open("r+").attrs["unit"] = "m"
        return found

    with monkeypatch.context() as patched:
        patched.setattr(repair, "inspect", inspect_and_write)
        with pytest.raises(ConflictError):
            sparse.repair()
    assert sparse.open().attrs["unit"] == "m"
    assert sparse.repair().lost == (2,)
    assert sparse.open().attrs["unit"] == "m"


def test_a_missing_chunk_is_found_and_lost(sparse):
    sparse.fs.rm_file(sparse.chunk_object(1))
    assert [(problem.kind, problem.chunk) for problem in sparse.verify().problems] == [("missing", 1)]
    with pytest.raises(ChunkMissingError, match="chunk 1 of"):
        sparse.open()[...]
    assert sparse.repair().lost == (1,)
    np.testing.assert_array_equal(sparse.open()[16:], sparse.data[16:])
    sparse.open("r+")[8:16] = sparse.data[8:16]
    assert sparse.verify().ok
    np.testing.assert_array_equal(sparse.open()[...], sparse.data)


def test_a_chunk_that_was_cut_off_is_lost(sparse):
    sparse.fs.pipe_file(sparse.chunk_object(4), sparse.fs.cat_file(sparse.chunk_object(4))[:100])
    assert {problem.chunk for problem in sparse.verify().problems} == {4}
    assert sparse.repair().lost == (4,)


def test_only_objects_of_nobody_that_are_old_enough_are_removed(sparse):
    reader = sparse.open()
    sparse.open("r+")[:8] = sparse.data[:8] = 1
    sparse.fs.pipe_file(f"{sparse.root}/0000AAAA.chunk", b"of a writer that was killed")
    sparse.fs.pipe_file(f"{sparse.root}/notes.txt", b"of somebody else")
    superseded = sparse.places[0].name
    assert set(sparse.verify().orphans) == {superseded, "0000AAAA.chunk"}
    before = sparse.objects()
    assert sparse.vacuum().removed == ()
    assert sparse.vacuum(grace="1h").removed == ()
    assert set(sparse.vacuum(grace=0, dry_run=True).removed) == {superseded, "0000AAAA.chunk"}
    assert sparse.objects() == before
    result = sparse.vacuum(grace=0)
    assert set(result.removed) == {superseded, "0000AAAA.chunk"}
    assert result.nbytes == sum(len(before[f"/{name}"]) for name in result.removed)
    assert before.keys() - sparse.objects().keys() == {f"/{name}" for name in result.removed}
    assert sparse.verify().orphans == ()
    np.testing.assert_array_equal(sparse.open()[...], sparse.data)
    with pytest.raises(ConflictError, match="refresh"):
        reader[:8]
    np.testing.assert_array_equal(reader[8:], sparse.data[8:])


def test_one_object_is_written_without_dead_space(cloud, cloud_url):
    stored = Bucket(cloud, cloud_url, "contiguous")
    a = stored.open("r+")
    a[:8] = stored.data[:8] = 2.5
    done = b2array.repack(stored.url, **stored.kw)
    assert done.nbytes >= 0
    assert stored.verify().dead_nbytes == 0
    np.testing.assert_array_equal(stored.open()[...], stored.data)
