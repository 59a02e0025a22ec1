"""The cache on disk alone: contents, damage, limits, processes, and directories that cannot be used."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from b2array import config
from b2array.store import disk_cache
from b2array.store.disk_cache import CachedPart, DiskCache, current

KEY, OTHER = b"k" * 16, b"o" * 16
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"))


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the directory of the cache."""
    # Tests assign the setting again, which would last beyond a block of `config.using`.
    monkeypatch.setattr(config, "disk_cache", tmp_path / "cache")
    return tmp_path / "cache"


def content(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def files(cache: DiskCache) -> list[Path]:
    return [path for path in Path(cache.root).rglob("*") if path.is_file() and len(path.name) == 30]


def read(cache: DiskCache, key: bytes, start: int, stop: int) -> bytes | None:
    """Return a range that is wholly in the cache; otherwise None."""
    (found,) = cache.find(key, [(start, stop)])
    if found.missing is not None:
        return None
    return b"".join(bytes(view) for _, view in found.views)


def test_ranges_of_a_content_are_found_again_alone_and_together(cache: DiskCache) -> None:
    data = content(300_000)
    cache.add(KEY, [(0, data[:100]), (100, data[100:70_000]), (200_000, data[200_000:])])
    for start, stop in [
        (0, 100),
        (50, 60),
        (0, 70_000),
        (99, 101),
        (65_000, 70_000),
        (200_000, 300_000),
        (299_999, 300_000),
    ]:
        assert read(cache, KEY, start, stop) == data[start:stop]
        assert read(DiskCache(str(Path(cache.root).parent)), KEY, start, stop) == data[start:stop]
    assert read(cache, OTHER, 0, 1) is None


def test_only_what_is_missing_is_asked_for_in_one_range(cache: DiskCache) -> None:
    data = content(1000)
    cache.add(KEY, [(100, data[100:200]), (400, data[400:500])])
    wanted = [(0, 50), (150, 300), (50, 150), (150, 450), (0, 1000)]
    missing = [(0, 50), (200, 300), (50, 100), (200, 400), (0, 1000)]
    assert cache.missing(KEY, wanted) == missing
    found = cache.find(KEY, wanted)
    assert [each.missing for each in found] == missing
    for (start, stop), each in zip(wanted, found, strict=True):
        parts = [*((at, bytes(view)) for at, view in each.views), (each.missing[0], data[slice(*each.missing)])]
        assert b"".join(part for _, part in sorted(parts)) == data[start:stop]


def test_the_end_of_a_content_is_noted(cache: DiskCache) -> None:
    cache.add(KEY, [(0, b"abc")], stop=3)
    assert cache.find(KEY, [(0, 10)]) == [CachedPart([(0, memoryview(b"abc"))], None, 3)]
    assert cache.find(KEY, [(5, 10)]) == [CachedPart([], None, 5)]
    assert cache.find(KEY, [(0, 3)])[0].stop is None


def test_a_copy_replaces_the_copy_before(cache: DiskCache) -> None:
    for data in (b"first", b"second", b"third"):
        cache.add(KEY, [(0, data)], replaces=True)
        assert cache.last(KEY) == data
    assert len(files(cache)) == 1
    assert files(cache)[0].stat().st_size < 200


def test_nobody_else_may_read_the_files(cache: DiskCache, tmp_path: Path) -> None:
    cache.add(KEY, [(0, b"private")])
    cache.count(found=1, missed=0)
    cache.note_counts()
    for path in [tmp_path / "cache", *Path(cache.root).rglob("*"), Path(cache.root)]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_damage_at_any_byte_costs_the_content_and_gives_no_wrong_bytes(cache: DiskCache) -> None:
    data = content(70_000)
    extents = [(0, data[:40_000]), (50_000, data[50_000:])]
    cache.add(KEY, extents, stop=70_000)
    (path,) = files(cache)
    good = path.read_bytes()
    # All bytes of both heads and tables, and some of each payload.
    payload = [place for place in range(len(good)) if place % 997 == 0]
    second = 44 + 8 + 40_000
    heads = [*range(44 + 8), *range(second, second + 44 + 4), *range(len(good) - 44, len(good))]
    wanted = [(0, 40_000), (50_000, 70_000), (10, 20), (0, 70_000), (60_000, 90_000)]
    for place in sorted({*payload, *heads}):
        for bit in (1, 128):
            bad = bytearray(good)
            bad[place] ^= bit
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bad)
            fresh = DiskCache(str(Path(cache.root).parent))
            for (start, stop), found in zip(wanted, fresh.find(KEY, wanted), strict=True):
                for at, view in found.views:
                    assert start <= at < stop
                    assert view == data[at : at + len(view)]
            # Nothing of a record whose head is damaged is found.
            if place < 44 + 8:
                assert fresh.find(KEY, [(0, 40_000)]) == [CachedPart([], (0, 40_000))]
    path.write_bytes(good)
    assert read(cache, KEY, 0, 40_000) == data[:40_000]


def test_a_damaged_file_is_removed_and_can_be_filled_again(cache: DiskCache) -> None:
    data = content(100_000)
    cache.add(KEY, [(0, data)])
    (path,) = files(cache)
    bad = bytearray(path.read_bytes())
    bad[90_000] ^= 1
    path.write_bytes(bad)
    # The segment that is damaged is not read here.
    assert read(cache, KEY, 0, 10) == data[:10]
    assert read(cache, KEY, 89_000, 91_000) is None
    assert not path.exists()
    cache.add(KEY, [(0, data)])
    assert read(cache, KEY, 89_000, 91_000) == data[89_000:91_000]


@pytest.mark.parametrize("length", [0, 1, 43, 44, 48, 1000, 40_099, 40_100, 40_110, 60_000])
def test_a_file_that_is_cut_off_gives_what_is_whole(cache: DiskCache, length: int) -> None:
    data = content(40_000)
    cache.add(KEY, [(0, data[:39_000])])
    cache.add(KEY, [(39_000, data[39_000:])])
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    fresh = DiskCache(str(Path(cache.root).parent))
    expected = {True: data[:39_000], False: None}[length >= 44 + 8 + 39_000]
    assert read(fresh, KEY, 0, 39_000) == expected
    assert read(fresh, KEY, 0, 40_000) == (data if length >= len(whole) else None)
    # Another process appends behind the record that is cut off.
    fresh.add(KEY, [(0, data)])
    for _ in range(3):
        if read(fresh, KEY, 0, 40_000) is None:
            fresh.add(KEY, [(0, data)])
    assert read(fresh, KEY, 0, 40_000) == data


def test_a_record_that_stays_cut_off_is_removed(cache: DiskCache) -> None:
    data = content(1000)
    cache.add(KEY, [(0, data)])
    cache.add(KEY, [(1000, content(10**6))])
    (path,) = files(cache)
    with path.open("r+b") as file:
        file.truncate(5000)
    assert read(cache, KEY, 0, 1000) == data
    old = time.time() - 60
    os.utime(path, (old, old))
    assert read(cache, KEY, 0, 1000) is None
    assert not path.exists()


def test_a_file_under_the_name_of_another_one_is_not_taken_for_it(cache: DiskCache) -> None:
    cache.add(KEY, [(0, b"mine")])
    cache.add(OTHER, [(0, b"other")])
    one, other = Path(cache._path(KEY)), Path(cache._path(OTHER))
    one.write_bytes(other.read_bytes())
    assert read(cache, KEY, 0, 4) is None
    assert read(cache, OTHER, 0, 5) == b"other"


@pytest.mark.parametrize("foreign", [b"", b"x", bytes(10**5), b"b2dc" * 1000])
def test_foreign_files_are_no_contents_and_survive_only_under_foreign_names(cache: DiskCache, foreign: bytes) -> None:
    cache.add(KEY, [(0, b"mine")])
    path = Path(cache._path(KEY))
    path.write_bytes(foreign)
    for name in ("notes.txt", "added-notes"):
        (Path(cache.root) / name).write_bytes(foreign)
    (path.parent / "notes.txt").write_bytes(foreign)
    assert read(cache, KEY, 0, 4) is None
    assert cache.last(KEY) is None
    (Path(cache.root) / "reads").write_bytes(foreign[:50])
    (Path(cache.root) / "added").write_bytes(foreign[:3])
    cache.add(KEY, [(0, b"mine")])
    cache.usage()
    cache.clear()
    assert (path.parent / "notes.txt").read_bytes() == foreign
    assert files(cache) == []


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_what_is_no_file_is_no_content_and_does_not_turn_the_cache_off(
    cache: DiskCache,
    tmp_path: Path,
    kind: str,
) -> None:
    path, elsewhere = Path(cache._path(KEY)), tmp_path / "elsewhere"
    path.parent.mkdir()
    elsewhere.write_bytes(b"precious")

    if kind == "directory":
        path.mkdir()
    elif not hasattr(os, "mkfifo"):
        pytest.skip("needs links and pipes")
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    cache.add(KEY, [(0, b"mine")])
    assert read(cache, KEY, 0, 4) is None
    cache.add(KEY, [(0, b"mine")])
    # Reading has removed what was there, unless it was a directory.
    assert read(cache, KEY, 0, 4) == (None if kind == "directory" else b"mine")
    assert elsewhere.read_bytes() == b"precious"


def fill(cache: DiskCache, numbers: Iterator[int] | range, nbytes: int) -> None:
    for n in numbers:
        cache.add(n.to_bytes(16, "big"), [(0, content(nbytes, n))])


def test_the_least_recently_used_contents_go_first(cache: DiskCache) -> None:
    with config.using(disk_cache_bytes=400_000):
        for n in range(8):
            fill(cache, range(n, n + 1), 40_000)
            time.sleep(0.01)
        assert read(cache, (0).to_bytes(16, "big"), 0, 40_000) == content(40_000, 0)
        time.sleep(0.01)
        fill(cache, range(8, 12), 40_000)
        left = {n for n in range(12) if read(cache, n.to_bytes(16, "big"), 0, 40_000) is not None}
    assert {0, 9, 10, 11} <= left
    assert 1 not in left
    assert sum(path.stat().st_size for path in files(cache)) <= 400_000


def test_contents_from_a_time_when_the_clock_was_ahead_go_first(cache: DiskCache) -> None:
    """Otherwise they would stay for ever, and each new content would go at once."""
    with config.using(disk_cache_bytes=400_000):
        fill(cache, range(8), 40_000)
        later = time.time() + 10**7
        for path in files(cache):
            os.utime(path, (later, later))
        fill(cache, range(8, 12), 40_000)
        left = {n for n in range(12) if read(cache, n.to_bytes(16, "big"), 0, 40_000) is not None}
    assert {8, 9, 10, 11} <= left


@pytest.mark.parametrize("nbytes", [100, 5000, 30_000])
def test_the_cache_never_exceeds_its_limit(cache: DiskCache, nbytes: int) -> None:
    with config.using(disk_cache_bytes=200_000):
        for n in range(100):
            fill(cache, range(n, n + 1), nbytes)
            assert sum(-(-path.stat().st_size // 4096) * 4096 for path in files(cache)) <= 200_000
        assert len(files(cache)) >= min(40, 200_000 // (nbytes + 4096)) // 2


def test_a_smaller_limit_takes_effect_with_the_next_bytes(cache: DiskCache) -> None:
    fill(cache, range(20), 20_000)
    with config.using(disk_cache_bytes=100_000):
        fill(cache, range(20, 21), 20_000)
        assert cache.usage().nbytes <= 100_000
    assert read(cache, (20).to_bytes(16, "big"), 0, 20_000) == content(20_000, 20)


def test_bytes_that_fill_half_of_the_cache_are_not_kept(cache: DiskCache) -> None:
    with config.using(disk_cache_bytes=100_000):
        cache.add(KEY, [(0, content(60_000))])
    assert files(cache) == []


def test_usage_counts_files_bytes_and_reads_of_all_processes(cache: DiskCache) -> None:
    fill(cache, range(3), 5000)
    cache.count(found=10, missed=0)
    cache.count(found=5, missed=7)
    cache.note_counts()
    other = DiskCache(str(Path(cache.root).parent))
    other.count(found=20, missed=0)
    assert other.usage() == (3, 3 * 8192, 2, 35, 1, 7)
    other.clear()
    assert cache.usage() == (0, 0, 0, 0, 0, 0)
    fill(cache, range(3), 5000)
    assert len(files(cache)) == 3


def test_the_counts_of_reads_stay_small_on_disk(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_MOST_COUNTS", 1000)
    for _ in range(200):
        cache.count(found=2, missed=1)
        cache.note_counts()
    assert (Path(cache.root) / "reads").stat().st_size < 1100
    assert cache.usage()[2:] == (0, 400, 200, 200)


def test_threads_share_a_cache(cache: DiskCache) -> None:
    wrong = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            n = rng.randrange(6)
            start = rng.randrange(90) * 1000
            key, data = n.to_bytes(16, "big"), DATA[n]
            (found,) = cache.find(key, [(start, start + 5000)])
            for at, view in found.views:
                if view != data[at : at + len(view)]:
                    wrong.append(n)
            if found.missing:
                cache.add(key, [(found.missing[0], data[slice(*found.missing)])])
            if rng.random() < 0.05:
                cache.forget(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


DATA = [content(100_000, n) for n in range(6)]


def _use(directory: str, seed: int, rounds: int) -> None:
    """Read and fill a small cache; a wrong byte ends the process with a status."""
    cache = DiskCache(directory)
    rng = random.Random(seed)
    config.disk_cache_bytes = 300_000
    for number in itertools.count():
        if number == rounds:
            return
        n = rng.randrange(6)
        start = rng.randrange(90) * 1000
        key, data = n.to_bytes(16, "big"), DATA[n]
        (found,) = cache.find(key, [(start, start + 9000)])
        if any(view != data[at : at + len(view)] for at, view in found.views):
            os._exit(3)
        if found.missing:
            cache.add(key, [(found.missing[0], data[slice(*found.missing)])])


@forking
def test_processes_share_a_cache_and_its_limit(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_use, args=(str(tmp_path / "c"), seed, 300)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    # Processes that add at the same time may each exceed the limit by what they are adding.
    assert DiskCache(str(tmp_path / "c")).usage().nbytes <= 300_000 + 4 * 16_384


@forking
@pytest.mark.slow
def test_processes_that_are_killed_leave_nothing_that_is_taken_for_data(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    rng = random.Random(1)
    for seed in range(15):
        process = context.Process(target=_use, args=(str(tmp_path / "c"), seed, -1))
        process.start()
        time.sleep(rng.uniform(0.01, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    survivor = context.Process(target=_use, args=(str(tmp_path / "c"), 99, 300))
    survivor.start()
    survivor.join()
    assert survivor.exitcode == 0


def refused(*, says: str) -> None:
    """Check that the cache is off, with one warning."""
    with pytest.warns(UserWarning, match=f"reads without its cache on disk.*({says})"):
        assert current() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current() is None


def test_a_full_disk_turns_the_cache_off_with_one_warning(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from b2array.store import through
    from b2array.store.base import ContentName
    from b2array.store.spans import Span

    cache = current()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    data = content(50_000)
    spans, contents = [Span("x", 0, 50_000)], [ContentName(b"x", 0)]

    def fetch(spans: list[Span]) -> tuple[list[memoryview], bool]:
        return [memoryview(data)[start:stop] for _, start, stop in spans], True

    with pytest.warns(UserWarning, match="reads without its cache on disk.*No space left"):
        assert through.read(cache, "place", spans, contents, fetch, clip=False) == [data]
    assert current() is None
    assert files(cache) == []
    # Assigning the setting again is another attempt.
    monkeypatch.setattr(os, "write", write)
    with config.using(disk_cache=None):
        pass
    config.disk_cache = setting
    assert current() is not None


def test_a_disk_that_takes_only_a_part_leaves_no_file(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    cache.add(KEY, [(0, content(50_000))])
    assert files(cache) == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_not_used(setting: Path) -> None:
    setting.mkdir(mode=0o500)
    refused(says="Permission denied")


def test_a_read_only_file_system_is_not_used(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    refused(says="Read-only file system")


def test_a_file_in_place_of_the_directory_is_not_used(setting: Path) -> None:
    setting.write_bytes(b"")
    refused(says="exists")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
@pytest.mark.parametrize("mode", [0o770, 0o755, 0o701])
def test_a_directory_that_others_may_read_is_not_used(setting: Path, mode: int) -> None:
    inner = setting / "b2array-1"
    inner.mkdir(parents=True)
    inner.chmod(mode)
    refused(says="this user alone")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_a_directory_in_which_others_may_rename_is_not_used_but_tmp_is(setting: Path) -> None:
    setting.mkdir()
    setting.chmod(0o777)
    refused(says="others may change")
    setting.chmod(0o1777)
    config.disk_cache = setting
    assert current() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_a_directory_of_somebody_else_is_not_used(setting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (setting / "b2array-1").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: setting.stat().st_uid + 1)
    refused(says="others may change|this user alone")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_to_a_directory_is_not_used(setting: Path, tmp_path: Path) -> None:
    setting.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (setting / "b2array-1").symlink_to(tmp_path / "elsewhere")
    refused(says="this user alone")


@pytest.mark.slow
def test_the_environment_sets_the_directory_and_nothing_is_imported_without_it(tmp_path: Path) -> None:
    program = "import sys, b2array; print(b2array.config.disk_cache, 'b2array.store.disk_cache' in sys.modules)"

    def run(**environment: str) -> str:
        around = {name: value for name, value in os.environ.items() if name != "B2ARRAY_DISK_CACHE"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=around | environment, capture_output=True, text=True, check=True).stdout

    assert run() == run(B2ARRAY_DISK_CACHE="") == "None False\n"
    assert run(B2ARRAY_DISK_CACHE=str(tmp_path)) == f"{tmp_path} False\n"


@pytest.mark.parametrize("value", [3, "", b"bytes", True])
def test_only_paths_are_directories(value: object) -> None:
    with pytest.raises(ValueError, match="path of a directory, or None"):
        config.disk_cache = value
