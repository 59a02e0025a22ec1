"""Reads through the cache on disk: their requests and bytes, and that they never show an older state or damage."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import blosc2
import clouds
import numpy as np
import pytest
from servers import RangeServer

import b2array
from b2array import __main__, config
from b2array.errors import ChecksumError

SHAPE, CHUNKS, BLOCKS = (120, 130, 64), (30, 60, 64), (10, 15, 32)
KEYS = [np.s_[10:50, 20:70, 5], np.s_[100], np.s_[7, 100, 3], np.s_[0:45]]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    """Keep a cache on disk, and none in memory."""
    with config.using(disk_cache=tmp_path / "cache", cache_bytes=0, threads=1):
        yield tmp_path / "cache"


@pytest.fixture(params=[True, False], ids=["obstore", "fsspec"])
def client(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read through each client."""
    with config.using(obstore=request.param):
        yield


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, SHAPE).astype("f8")


def make(path: Path, x: np.ndarray, layout: str = "contiguous") -> b2array.NDArray:
    return b2array.asarray(x, url=path, layout=layout, chunks=CHUNKS, blocks=BLOCKS, overwrite=True)


def publish(http: RangeServer, path: Path, name: str = "a.b2nd") -> None:
    """Serve a file or a directory, in place of what was served under the name."""
    for served in [served for served in http.objects if served == name or served.startswith(f"{name}/")]:
        del http.objects[served]
    for file in [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()):
        below = "" if file == path else f"/{file.relative_to(path).as_posix()}"
        http.objects[name + below] = file.read_bytes()


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and len(path.name) == 30)


def read_all(url: str, x: np.ndarray, **options: object) -> None:
    """Open an array as another session would, and compare some selections."""
    a = b2array.open(url, **options)
    for key in KEYS:
        np.testing.assert_array_equal(a[key], x[key])


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_second_session_over_http_sends_one_or_two_requests_for_a_byte(http, tmp_path, layout) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x, layout)
    publish(http, tmp_path / "a.b2nd")
    read_all(http.url_of("a.b2nd"), x)
    http.requests.clear()
    for sessions in (1, 2):
        read_all(http.url_of("a.b2nd"), x)
        asked = sessions if layout == "contiguous" else 2 * sessions
        assert (len(http.requests), http.nbytes_asked) == (asked, asked)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_text_is_kept_as_numbers_are(http, tmp_path, layout) -> None:
    path = tmp_path / "a.b2nd"
    numbers = np.random.default_rng(0).integers(0, 2**62, (30_000, 3))
    x = np.array([f"é{a}{b}" * (a % 2) + str(c) for a, b, c in numbers.tolist()], "T")
    a = b2array.asarray(x, url=path, layout=layout, chunks=10_000, blocks=300)
    publish(http, path)
    assert b2array.open(http.url_of("a.b2nd"))[...].tolist() == x.tolist()
    http.requests.clear()
    assert b2array.open(http.url_of("a.b2nd"))[...].tolist() == x.tolist()
    asked = 1 if layout == "contiguous" else 2
    assert (len(http.requests), http.nbytes_asked) == (asked, asked)
    # A commit changes one of three chunks, and the others are still here.
    a.append(np.array(["new"], "T"))
    a[25_000] = "changed"
    publish(http, path)
    http.requests.clear()
    expected = [*x[:25_000].tolist(), "changed", *x[25_001:].tolist(), "new"]
    assert b2array.open(http.url_of("a.b2nd"))[...].tolist() == expected
    assert http.nbytes_asked < 0.6 * a.cbytes


def test_another_process_finds_what_this_one_has_read(http, tmp_path, directory) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    read_all(http.url_of("a.b2nd"), x)
    http.requests.clear()
    program = f"import b2array; print(b2array.open({http.url_of('a.b2nd')!r})[100].sum())"
    environment = {**os.environ, "B2ARRAY_DISK_CACHE": str(directory)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) == x[100].sum()
    assert (len(http.requests), http.nbytes_asked) == (1, 1)


def test_another_selection_reads_only_what_is_missing(http, tmp_path) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    a = b2array.open(http.url_of("a.b2nd"))
    a[:30]
    http.requests.clear()
    np.testing.assert_array_equal(a[5:20, 10:90], x[5:20, 10:90])
    assert not http.requests
    np.testing.assert_array_equal(a[:60], x[:60])
    assert len(http.requests) == 1
    assert http.nbytes_asked < len(http.objects["a.b2nd"]) / 3.5


def test_without_the_setting_the_requests_are_the_same_and_nothing_is_written(http, tmp_path, directory) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    asked = []
    for setting in (None, None, directory):
        http.requests.clear()
        with config.using(disk_cache=setting):
            read_all(http.url_of("a.b2nd"), x)
        asked.append(sorted(http.requests))
        assert directory.exists() == (setting is not None)
    assert asked[0] == asked[1]
    # The first session with the cache sends fewer: it reads no byte twice, and over larger gaps.
    assert len(asked[2]) < len(asked[0])


def test_sessions_send_no_more_requests_and_bytes_than_those_of_stock(http, tmp_path) -> None:
    """Chunks are so large that b2array reads their first and last bytes apart, unless it keeps what is between."""
    steps = np.random.default_rng(0).integers(-9, 10, (60, 260, 128))
    x = np.cumsum(steps, axis=0).astype("f8")
    b2array.asarray(x, url=tmp_path / "a.b2nd", chunks=(60, 65, 64), blocks=(20, 33, 32))
    publish(http, tmp_path / "a.b2nd")
    keys = [np.s_[20:60, 30:90, 10:60], np.s_[40], np.s_[7, 100, 3]]

    def session(open_array: Callable[[], object]) -> tuple[int, int]:
        http.requests.clear()
        opened = open_array()
        for key in keys:
            np.testing.assert_array_equal(opened[key], x[key])
        return len(http.requests), http.nbytes_asked

    url = http.url_of("a.b2nd")
    with config.using(disk_cache=tmp_path / "ours"):
        ours = [session(lambda: b2array.open(url)) for _ in range(3)]
    stock = {"mode": "r", "lazy": True, "cache_dir": str(tmp_path / "stock"), "assume_immutable": True}
    theirs = [session(lambda: blosc2.open(url, **stock)) for _ in range(3)]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[0] <= other[0]
        assert mine[1] <= other[1]
    assert ours[1:] == [(1, 1)] * 2


@pytest.mark.parametrize("library", ["b2array", "blosc2"])
def test_bytes_between_wanted_chunks_are_kept_for_the_next_reader(http, tmp_path, library) -> None:
    """Four chunks in a row have four planes: a reader of one reads over the other three."""
    x = np.random.default_rng(0).integers(0, 1000, (60, 40, 40)).astype("f8")
    path = tmp_path / "a.b2nd"
    if library == "b2array":
        a = b2array.asarray(x, url=path, chunks=(15, 10, 40), blocks=(15, 5, 40))
        # There is dead space between chunks.
        for n in range(0, 60, 20):
            a[n] = x[n] = n
    else:
        blosc2.asarray(x, urlpath=str(path), chunks=(15, 10, 40), blocks=(15, 5, 40))
    publish(http, path)
    opened = b2array.open(http.url_of("a.b2nd"))
    http.requests.clear()
    for n in (5, 15, 25, 35):
        np.testing.assert_array_equal(opened[:, n], x[:, n])
    # Chunks of stock take two waves: it notes no sizes. A few bytes between the waves may be missing.
    waves = 1 if library == "b2array" else 2
    assert len(http.requests) <= 4 * waves
    assert http.nbytes_asked <= len(http.objects["a.b2nd"])
    http.requests.clear()
    np.testing.assert_array_equal(opened[:], x)
    assert len(http.requests) <= waves - 1


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_items_in_the_cache_take_few_calls_more_than_in_a_local_file(http, tmp_path, layout) -> None:
    make(tmp_path / "a.b2nd", values(), layout)
    publish(http, tmp_path / "a.b2nd")
    counts = []
    for opened in (b2array.open(tmp_path / "a.b2nd"), b2array.open(http.url_of("a.b2nd"))):
        opened[7, 100, 3]
        called = []
        sys.setprofile(lambda _frame, event, _arg, called=called: called.append(event))
        try:
            opened[7, 100, 3]
        finally:
            sys.setprofile(None)
        counts.append(called.count("call"))
    assert counts[1] < counts[0] + 22


@pytest.mark.costly
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_replaced_array_gives_the_new_values(http, tmp_path, layout) -> None:
    for seed in range(3):
        x = values(seed)
        make(tmp_path / "a.b2nd", x, layout)
        publish(http, tmp_path / "a.b2nd")
        for _ in range(2):
            read_all(http.url_of("a.b2nd"), x)


def test_an_array_that_changes_its_layout_gives_the_new_values(http, tmp_path) -> None:
    for seed, layout in enumerate(["sparse", "contiguous", "sparse"]):
        x = values(seed)
        path = tmp_path / f"{seed}.b2nd"
        make(path, x, layout)
        publish(http, path)
        for _ in range(2):
            read_all(http.url_of("a.b2nd"), x)


def test_a_file_beside_the_directory_wins_as_without_the_cache(http, tmp_path) -> None:
    x, y = values(0), values(1)
    make(tmp_path / "x.b2nd", x, "sparse")
    publish(http, tmp_path / "x.b2nd")
    read_all(http.url_of("a.b2nd"), x)
    http.objects["a.b2nd"] = Path(make(tmp_path / "y.b2nd", y).url).read_bytes()
    read_all(http.url_of("a.b2nd"), y)
    del http.objects["a.b2nd"]
    read_all(http.url_of("a.b2nd"), x)


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_after_a_commit_only_what_changed_is_read_again(http, tmp_path, layout) -> None:
    x = values()
    a = make(tmp_path / "a.b2nd", x, layout)
    publish(http, tmp_path / "a.b2nd")
    np.testing.assert_array_equal(b2array.open(http.url_of("a.b2nd"))[:], x)
    x[3, 4, 5] = a[3, 4, 5] = -1
    publish(http, tmp_path / "a.b2nd")
    http.requests.clear()
    np.testing.assert_array_equal(b2array.open(http.url_of("a.b2nd"))[:], x)
    chunk = 8 * int(np.prod(CHUNKS))
    # One chunk, and what is read to open: 64 KiB at both ends.
    assert http.nbytes_asked < chunk + 2 * 65_536 + 100
    assert len(http.requests) <= 5
    chunks = [(path, asked) for _, path, asked in http.requests if "65535" not in asked and asked != "bytes=-65536"]
    assert len([each for each in chunks if each[1] != "bytes=0-0"]) <= 1


def test_a_restored_backup_gives_its_values(http, tmp_path) -> None:
    states = []
    a = make(tmp_path / "a.b2nd", values(), "sparse")
    rng = np.random.default_rng(1)
    for _ in range(4):
        a[rng.integers(120)] = rng.integers(0, 1000, SHAPE[1:])
        publish(http, tmp_path / "a.b2nd")
        states.append((dict(http.objects), a[:]))
        read_all(http.url_of("a.b2nd"), a[:])
    for number in (0, 2, 1, 3, 0):
        http.objects.clear()
        http.objects.update(states[number][0])
        read_all(http.url_of("a.b2nd"), states[number][1])
    # The copy of an earlier state has another history, with the same names of files.
    for path in (tmp_path / "a.b2nd").iterdir():
        path.unlink()
    for name, content in states[1][0].items():
        (tmp_path / name).write_bytes(content)
    b = b2array.open(tmp_path / "a.b2nd", "r+")
    for _ in range(4):
        b[rng.integers(120)] = rng.integers(0, 1000, SHAPE[1:])
        publish(http, tmp_path / "a.b2nd")
        read_all(http.url_of("a.b2nd"), b[:])


@pytest.mark.parametrize("contiguous", [True, False])
def test_frames_of_other_software_are_read_by_version_or_not_kept(http, tmp_path, directory, contiguous) -> None:
    x = values()
    path = tmp_path / "a.b2nd"
    b = blosc2.asarray(x, urlpath=str(path), contiguous=contiguous, chunks=CHUNKS, blocks=BLOCKS)
    publish(http, path)
    for _ in range(2):
        http.requests.clear()
        read_all(http.url_of("a.b2nd"), x)
    if contiguous:
        assert (len(http.requests), http.nbytes_asked) == (1, 1)
    # python-blosc2 writes chunks in their places, under the same names.
    for n in range(3):
        b[3, 4, 5] = x[3, 4, 5] = -n
        publish(http, path)
        np.testing.assert_array_equal(b2array.open(http.url_of("a.b2nd"))[:5, :5], x[:5, :5])


def test_servers_without_versions_are_not_cached(http, tmp_path, directory) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    http.tags = False
    counts = []
    for _ in range(2):
        http.requests.clear()
        read_all(http.url_of("a.b2nd"), x)
        counts.append(len(http.requests))
    assert counts[0] == counts[1]
    assert files(directory) == []


@pytest.fixture
def answers(monkeypatch) -> Callable[[Callable[[dict[str, str], str], dict[str, str]]], None]:
    """Give a function that changes the headers of all answers; it gets the headers and the path."""
    from servers import _Handler

    content = _Handler._content

    def change(headers_of: Callable[[dict[str, str], str], dict[str, str]]) -> None:
        def changed(self: _Handler, path: str) -> tuple[int, dict[str, str], bytes]:
            status, headers, data = content(self, path)
            return status, headers_of(headers, self.headers.get("Range", "")), data

        monkeypatch.setattr(_Handler, "_content", changed)

    return change


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("tags", ["weak", "only of the index", "none in ranges"])
@pytest.mark.parametrize("library", ["b2array", "blosc2"])
def test_bytes_without_a_strong_version_are_not_kept(http, tmp_path, directory, answers, tags, library) -> None:
    x = values()
    path = tmp_path / "a.b2nd"
    if library == "b2array":
        make(path, x)
    else:
        blosc2.asarray(x, urlpath=str(path), chunks=CHUNKS, blocks=BLOCKS)
    publish(http, path)

    def headers_of(headers: dict[str, str], wanted: str) -> dict[str, str]:
        tag = headers.pop("ETag", "")
        if tags == "weak":
            return {**headers, "ETag": f"W/{tag}"}
        is_of_index = wanted in ("bytes=0-65535", "bytes=-65536", "bytes=0-0")
        return {**headers, "ETag": tag} if tags == "only of the index" and is_of_index else headers

    answers(headers_of)
    for seed in range(3):
        for _ in range(2):
            read_all(http.url_of("a.b2nd"), x)
        kept = sum(file.stat().st_size for file in files(directory))
        assert kept < (0.2 * len(http.objects["a.b2nd"]) if tags == "only of the index" else 1)
        x = values(seed + 1)
        path.unlink()
        blosc2.asarray(x, urlpath=str(path), chunks=CHUNKS, blocks=BLOCKS)
        publish(http, path)


@pytest.mark.usefixtures("client")
def test_an_address_that_redirects_elsewhere_gives_the_new_values(http, tmp_path, monkeypatch) -> None:
    from servers import _Handler

    target = ["one.b2nd"]
    content = _Handler._content

    def redirect(self: _Handler, path: str) -> tuple[int, dict[str, str], bytes]:
        if path == "latest.b2nd":
            return 302, {"Location": f"/{target[0]}"}, b""
        return content(self, path)

    monkeypatch.setattr(_Handler, "_content", redirect)
    states = {}
    for seed, name in enumerate(("one.b2nd", "two.b2nd")):
        states[name] = values(seed)
        make(tmp_path / name, states[name])
        publish(http, tmp_path / name, name)
    for name in ("one.b2nd", "two.b2nd", "one.b2nd"):
        target[0] = name
        for _ in range(2):
            http.requests.clear()
            read_all(http.url_of("latest.b2nd"), states[name])
        # One request, and its redirection.
        assert len(http.requests) <= 2


def test_servers_whose_versions_change_all_the_time_are_as_before(http, tmp_path) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x, "sparse")
    publish(http, tmp_path / "a.b2nd")
    http.fickle = True
    for _ in range(3):
        read_all(http.url_of("a.b2nd"), x)


@pytest.mark.usefixtures("client")
def test_files_that_were_changed_a_moment_ago_are_asked_for_as_a_whole(http, tmp_path, monkeypatch) -> None:
    """As on servers whose tags are the time in seconds and the size."""
    import email.utils
    import time

    from servers import _Handler

    now = [time.time()]
    content = _Handler._content

    def with_time(self: _Handler, path: str) -> tuple[int, dict[str, str], bytes]:
        monkeypatch.setattr("servers.hashlib.blake2b", Constant)
        status, headers, data = content(self, path)
        return status, {**headers, "Last-Modified": email.utils.formatdate(now[0], usegmt=True)}, data

    class Constant:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def hexdigest(self) -> str:
            return f"{now[0]:.0f}-size"

    monkeypatch.setattr(_Handler, "_content", with_time)
    x = values()
    a = make(tmp_path / "a.b2nd", x)
    for n in range(3):
        x[3, 4, 5] = a[3, 4, 5] = -n
        publish(http, tmp_path / "a.b2nd")
        read_all(http.url_of("a.b2nd"), x)
    # An hour later, the tag is the same, and can be relied on.
    monkeypatch.setattr("b2array.store.http._OLD_ENOUGH", -timedelta(hours=1))
    read_all(http.url_of("a.b2nd"), x)
    http.requests.clear()
    read_all(http.url_of("a.b2nd"), x)
    assert len(http.requests) == 1


@pytest.mark.costly
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_damage_anywhere_in_the_cache_costs_requests_and_nothing_else(http, tmp_path, directory, layout) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x, layout)
    publish(http, tmp_path / "a.b2nd")
    read_all(http.url_of("a.b2nd"), x)
    good = {path: path.read_bytes() for path in files(directory)}
    rng = np.random.default_rng(0)
    for n in range(16):
        for path, content in good.items():
            bad = bytearray(content)
            place = int(rng.integers(len(bad))) if n > 8 else min(7 * n, len(bad) - 1)
            how = n % 4
            if how == 0:
                bad[place] ^= 1 << int(rng.integers(8))
            elif how == 1:
                del bad[place:]
            elif how == 2:
                bad[place:] = bytes(len(bad) - place)
            else:
                bad[place:place] = b"x"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bad)
        read_all(http.url_of("a.b2nd"), x)
    # A record that was cut off hides the next one, which is added behind it.
    for _ in range(3):
        http.requests.clear()
        read_all(http.url_of("a.b2nd"), x)
    assert len(http.requests) == (1 if layout == "contiguous" else 2)


def test_bytes_that_were_damaged_on_their_way_are_read_again(http, tmp_path) -> None:
    """The cache has kept them with the right checksums."""
    x = values()
    path = tmp_path / "a.b2nd"
    make(path, x, "sparse")
    publish(http, path)
    good = dict(http.objects)
    name = "a.b2nd/00000000.chunk"
    bad = bytearray(good[name])
    bad[5000] ^= 1
    http.objects[name] = bytes(bad)
    with pytest.raises(ChecksumError):
        b2array.open(http.url_of("a.b2nd"))[:30, :60]
    with pytest.raises(ChecksumError):
        b2array.read_many([(b2array.open(http.url_of("a.b2nd")), np.s_[:30, :60])])
    http.objects.update(good)
    (read,) = b2array.read_many([(b2array.open(http.url_of("a.b2nd")), np.s_[:30, :60])])
    np.testing.assert_array_equal(read, x[:30, :60])
    http.objects[name] = bytes(bad)
    # The good bytes are in the cache now.
    np.testing.assert_array_equal(b2array.open(http.url_of("a.b2nd"))[:30, :60], x[:30, :60])


def test_an_emptied_cache_is_filled_again(http, tmp_path, directory) -> None:
    from b2array.store.disk_cache import current

    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    for _ in range(3):
        read_all(http.url_of("a.b2nd"), x)
        current().clear()
    import shutil

    shutil.rmtree(directory)
    with pytest.warns(UserWarning, match="reads without its cache on disk"):
        read_all(http.url_of("a.b2nd"), x)
    read_all(http.url_of("a.b2nd"), x)


def test_a_small_cache_gives_right_values(http, tmp_path, directory) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    with config.using(disk_cache_bytes=400_000):
        for _ in range(3):
            read_all(http.url_of("a.b2nd"), x)
            assert sum(path.stat().st_size for path in files(directory)) <= 400_000


def test_handles_that_were_pickled_or_are_shared_by_threads_use_it(http, tmp_path) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    read_all(http.url_of("a.b2nd"), x)
    a = pickle.loads(pickle.dumps(b2array.open(http.url_of("a.b2nd"))))
    http.requests.clear()
    results = {}

    def work(n: int) -> None:
        results[n] = a[KEYS[n % len(KEYS)]]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, result in results.items():
        np.testing.assert_array_equal(result, x[KEYS[n % len(KEYS)]])
    assert not http.requests


def test_no_secret_gets_into_the_cache_and_signed_urls_share_it(http, tmp_path, directory) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    read_all(f"{http.url_of('a.b2nd')}?X-Amz-Signature=secretsecret&X-Amz-Date=1", x)
    http.requests.clear()
    read_all(f"{http.url_of('a.b2nd')}?X-Amz-Signature=othersecret&X-Amz-Date=2", x)
    assert http.nbytes_asked == len(http.requests) <= 2
    for path in directory.rglob("*"):
        assert "secret" not in path.name
        assert path.is_dir() or b"secretsecret" not in path.read_bytes()


def test_explain_says_how_much_is_in_the_cache(http, tmp_path) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    a = b2array.open(http.url_of("a.b2nd"))
    before = a.explain(np.s_[:30])
    assert (before.on_disk, before.requests > 0) == (0, True)
    assert "on disk" not in repr(before)
    a[:30]
    after = a.explain(np.s_[:30])
    # Requests also read gaps between blocks.
    assert 0.9 * before.nbytes < after.on_disk <= before.nbytes
    assert (after.requests, after.nbytes) == (0, 0)
    assert "on disk" in repr(after)
    part = a.explain(np.s_[:60])
    assert part.on_disk == after.on_disk
    http.requests.clear()
    a[:60]
    assert (len(http.requests), http.nbytes_asked) == (part.requests, part.nbytes)


@pytest.mark.slow
def test_info_and_the_program_name_the_cache(http, tmp_path, directory, capsys) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x)
    publish(http, tmp_path / "a.b2nd")
    assert b2array.open(http.url_of("a.b2nd")).info["disk cache"] == str(directory)
    assert "disk cache" not in b2array.open(tmp_path / "a.b2nd").info
    with config.using(disk_cache=None):
        assert "disk cache" not in b2array.open(http.url_of("a.b2nd")).info

    with b2array.open_group(tmp_path / "g.b2d", "w") as group:
        group["x"] = x
        group.consolidate()
        assert "disk cache" not in repr(group.info)
    publish(http, tmp_path / "g.b2d", "g.b2d")
    about = b2array.open_group(http.url_of("g.b2d")).info
    assert repr(about).endswith(f"\ndisk cache: {directory}")
    assert f">{directory}<" in about._repr_html_()
    with config.using(disk_cache=None):
        assert "disk cache" not in repr(b2array.open_group(http.url_of("g.b2d")).info)

    def program(*arguments: str) -> str:
        environment = {**os.environ, "B2ARRAY_DISK_CACHE": str(directory)}
        command = [sys.executable, "-m", "b2array", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    program("cat", http.url_of("a.b2nd"), "[0, 0, :3]")
    program("cat", http.url_of("a.b2nd"), "[0, 0, :3]")
    about = json.loads(program("cache", "--json"))

    def program_in_this_process(*arguments: str) -> str:
        capsys.readouterr()
        assert __main__.main(arguments) == 0
        return capsys.readouterr().out

    assert json.loads(program_in_this_process("cache", "--json")) == about
    assert about["directory"] == str(directory)
    assert about["nbytes"] > 0
    assert about["hits"] >= 1
    assert about["hit_nbytes"] > 1000
    assert re.search(r"hits +: \d+ of \d+ reads", program_in_this_process("cache"))
    assert json.loads(program_in_this_process("cache", "--clear", "--json")) == {
        **dict.fromkeys(about, 0),
        "directory": str(directory),
        "limit": 10 * 2**30,
    }
    assert files(directory) == []
    for name in ("a.b2nd", "g.b2d"):
        assert re.search(
            f"disk cache *: {re.escape(str(directory))}", program_in_this_process("info", http.url_of(name))
        )


def test_verify_looks_at_the_server(http, tmp_path) -> None:
    x = values()
    make(tmp_path / "a.b2nd", x, "sparse")
    publish(http, tmp_path / "a.b2nd")
    b2array.open(http.url_of("a.b2nd"))[:]
    assert b2array.verify(http.url_of("a.b2nd"), deep=True).ok
    name = "a.b2nd/00000000.chunk"
    bad = bytearray(http.objects[name])
    bad[5000] ^= 1
    http.objects[name] = bytes(bad)
    np.testing.assert_array_equal(b2array.open(http.url_of("a.b2nd"))[:], x)
    assert not b2array.verify(http.url_of("a.b2nd"), deep=True).ok


# Groups, archives and datasets.


def test_an_archive_over_http_is_read_once(http, tmp_path) -> None:
    x = values()
    with b2array.open_group(tmp_path / "g.b2z", "w") as group:
        group["x"] = x
        group["sub/y"] = x[:3]
    publish(http, tmp_path / "g.b2z", "g.b2z")
    for first in (True, False):
        http.requests.clear()
        group = b2array.open_group(http.url_of("g.b2z"))
        np.testing.assert_array_equal(group["x"][7], x[7])
        np.testing.assert_array_equal(group["sub/y"][:], x[:3])
        if not first:
            # 16 bytes tell that it is an archive, and another request its version.
            assert (len(http.requests), http.nbytes_asked) == (2, 17)


def dataset() -> object:
    xarray = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    variables = {name: (("t", "y", "x"), rng.random((20, 40, 50))) for name in ("u", "v", "w")}
    return xarray.Dataset(variables, {"t": np.arange(20.0), "y": np.arange(40.0), "x": np.arange(50.0)})


def test_a_dataset_in_an_archive_over_http_takes_two_requests_the_second_time(http, tmp_path) -> None:
    xarray = pytest.importorskip("xarray")
    ds = dataset()
    ds.b2array.to_b2array(tmp_path / "d.b2z")
    publish(http, tmp_path / "d.b2z", "d.b2z")
    for _ in range(2):
        http.requests.clear()
        with xarray.open_dataset(http.url_of("d.b2z"), engine="b2array") as opened:
            xarray.testing.assert_equal(opened.isel(t=3).load(), ds.isel(t=3))
    assert len(http.requests) <= 4, http.requests
    assert http.nbytes_asked < 100


@pytest.fixture
def groups(tmp_path, http) -> tuple[RangeServer, np.ndarray]:
    """Serve a group with a snapshot, a tree of python-blosc2 with an embedded member, and an embedding store."""
    x = values()
    with b2array.open_group(tmp_path / "g.b2d", "w") as group:
        group["x"], group["sub/y"] = x, x[:4]
        group.create("sparse", shape=x.shape, chunks=CHUNKS, layout="sparse")[:] = x
        group.snapshot("old")
        group["x"][0] = -1
        group.consolidate()
    with blosc2.TreeStore(str(tmp_path / "t.b2d"), mode="w", threshold=2**12) as tree:
        tree["/x"], tree["/small"] = x[:10], np.arange(10)
    b2array.open_group(tmp_path / "t.b2d", "r+").consolidate()
    embedding = blosc2.EmbedStore(str(tmp_path / "e.b2e"), mode="w")
    embedding["/x"] = x[0]
    del embedding
    for name in ("g.b2d", "t.b2d", "e.b2e"):
        publish(http, tmp_path / name, name)
    return http, x


READS = {
    "a member": (lambda http: b2array.open_group(http.url_of("g.b2d"))["x"][9], 9, 2),
    "a sparse member": (lambda http: b2array.open_group(http.url_of("g.b2d"))["sparse"][9], 9, 3),
    "an inner group": (lambda http: b2array.open_group(http.url_of("g.b2d"))["sub"]["y"][2], 2, 2),
    "a snapshot": (lambda http: b2array.open_group(http.url_of("g.b2d"), at="old")["x"][0], 0, 2),
    "a member by its URL": (lambda http: b2array.open(http.url_of("g.b2d/x"))[9], 9, 3),
    "a member of an inner group by its URL": (lambda http: b2array.open(http.url_of("g.b2d/sub/y"))[2], 2, 3),
    "a member by the URL of its file": (lambda http: b2array.open(http.url_of("g.b2d/x.b2nd"))[9], 9, 1),
    "a group by its URL": (lambda http: b2array.open(http.url_of("g.b2d"))["x"][9], 9, 3),
    "a tree of stock": (lambda http: b2array.open_group(http.url_of("t.b2d"))["x"][9], 9, 3),
    "a file of embedded arrays": (lambda http: b2array.open(http.url_of("e.b2e"))["x"][:], 0, 2),
}


@pytest.mark.parametrize("what", READS)
def test_groups_in_directories_over_http_take_few_requests_the_second_time(groups, what) -> None:
    http, x = groups
    read, plane, most = READS[what]
    for _ in range(2):
        http.requests.clear()
        np.testing.assert_array_equal(read(http), x[plane])
    assert http.nbytes_asked == len(http.requests) <= most


@pytest.mark.parametrize("name", ["g.b2d/x", "g.b2d"])
def test_an_array_at_the_url_of_a_known_group_or_member_is_opened_as_without_the_cache(
    groups,
    tmp_path,
    name,
) -> None:
    http, x = groups
    for _ in range(2):
        assert b2array.open_group(http.url_of("g.b2d"))["x"].shape == x.shape
        b2array.open(http.url_of(name))
    make(tmp_path / "other.b2nd", x[:7])
    http.objects[name] = (tmp_path / "other.b2nd").read_bytes()
    for _ in range(2):
        np.testing.assert_array_equal(b2array.open(http.url_of(name))[:], x[:7])
    del http.objects[name]
    opened = b2array.open(http.url_of(name))
    assert opened.shape == x.shape if name.endswith("x") else sorted(opened) == ["sparse", "sub", "x"]
    # Another group without the member is in the place.
    with b2array.open_group(tmp_path / "new.b2d", "w") as group:
        group["z"] = x[:2]
        group.consolidate()
    publish(http, tmp_path / "new.b2d", "g.b2d")
    for _ in range(2):
        np.testing.assert_array_equal(b2array.open(http.url_of("g.b2d/z"))[:], x[:2])
        with pytest.raises(FileNotFoundError):
            b2array.open(http.url_of("g.b2d/x"))


def test_embedded_members_over_http_are_read_once(groups) -> None:
    http, _ = groups
    for _ in range(2):
        http.requests.clear()
        assert b2array.open_group(http.url_of("t.b2d"))["small"][:].tolist() == [*range(10)]
    assert http.nbytes_asked == len(http.requests) <= 3


def test_a_dataset_of_files_over_http_is_asked_for_its_versions(http, tmp_path) -> None:
    """A local commit to a member does not change the manifest, so each member is asked for."""
    xarray = pytest.importorskip("xarray")
    ds = dataset()
    ds.b2array.to_b2array(tmp_path / "d.b2d")
    b2array.open_group(tmp_path / "d.b2d", "r+").consolidate()
    publish(http, tmp_path / "d.b2d", "d.b2d")
    for _ in range(2):
        http.requests.clear()
        with xarray.open_dataset(http.url_of("d.b2d"), engine="b2array") as opened:
            xarray.testing.assert_equal(opened.isel(t=3).load(), ds.isel(t=3))
    assert http.nbytes_asked == len(http.requests) <= 1 + 6


# Clouds.


@pytest.fixture
def gated(cloud: clouds.Cloud, cloud_url: str) -> Iterator[tuple[clouds.Gate, str, dict[str, object]]]:
    with clouds.gate_to(cloud) as (gate, endpoint):
        yield gate, f"{cloud_url}/a.b2nd", cloud.through(endpoint)


@pytest.mark.parametrize("cloud", ["s3", "gcs", "azure"], indirect=True)
def test_a_dataset_in_a_cloud_takes_at_most_four_requests_the_second_time(cloud, cloud_url) -> None:
    xarray = pytest.importorskip("xarray")
    ds = dataset()
    with clouds.gate_to(cloud) as (gate, endpoint):
        options = cloud.through(endpoint)
        url = f"{cloud_url}/d.b2d"
        ds.b2array.to_b2array(url, storage_options=options)
        for _ in range(2):
            gate.arm()
            with xarray.open_dataset(url, engine="b2array", storage_options=options) as opened:
                xarray.testing.assert_equal(opened.isel(t=3).load(), ds.isel(t=3))
        assert len(gate.asked) <= 4, gate.asked
        changed = ds.assign(u=ds.u + 1)
        changed.b2array.to_b2array(url, mode="w", storage_options=options)
        for _ in range(2):
            with xarray.open_dataset(url, engine="b2array", storage_options=options) as opened:
                xarray.testing.assert_equal(opened.load(), changed)


@pytest.mark.filterwarnings("ignore:.*one file in this store is rewritten")
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_second_session_in_a_cloud_takes_at_most_three_requests(gated, layout) -> None:
    gate, url, options = gated
    x = values()
    a = b2array.asarray(x, url=url, layout=layout, chunks=CHUNKS, blocks=BLOCKS, storage_options=options)
    read_all(url, x, storage_options=options)
    gate.arm()
    read_all(url, x, storage_options=options)
    assert len(gate.asked) <= 3, gate.asked
    # A commit by another program.
    for n in range(3):
        a[3, 4, 5] = x[3, 4, 5] = -n
        gate.arm()
        read_all(url, x, storage_options=options)
        assert len(gate.asked) <= 16, gate.asked
    # Another array in its place.
    x = values(7)
    b2array.asarray(x, url=url, overwrite=True, layout=layout, chunks=CHUNKS, blocks=BLOCKS, storage_options=options)
    read_all(url, x, storage_options=options)


def test_members_of_a_group_in_a_cloud(cloud, cloud_url) -> None:
    with clouds.gate_to(cloud) as (gate, endpoint):
        options = cloud.through(endpoint)
        url = f"{cloud_url}/g.b2d"
        x = values()
        group = b2array.open_group(url, "w", storage_options=options)
        with group.transaction() as changes:
            changes["x"], changes["y"] = x, x[:4]
        for _ in range(2):
            gate.arm()
            reader = b2array.open_group(url, storage_options=options)
            np.testing.assert_array_equal(reader["x"][3], x[3])
            np.testing.assert_array_equal(reader["y"][:], x[:4])
        assert len(gate.asked) <= 1, gate.asked
        group.snapshot("before")
        for n in range(3):
            group["x"][3, 4, 5] = x[3, 4, 5] = -n
            read = b2array.open(f"{url}/x", storage_options=options)
            np.testing.assert_array_equal(read[3], x[3])
        assert b2array.open(f"{url}/x", at="before", storage_options=options)[3, 4, 5] == values()[3, 4, 5]
        b2array.open_group(url, "r+", storage_options=options).restore("before")
        assert b2array.open(f"{url}/x", storage_options=options)[3, 4, 5] == values()[3, 4, 5]


@pytest.mark.costly
@pytest.mark.filterwarnings("ignore:.*one file in this store is rewritten")
@pytest.mark.parametrize("cloud", ["s3"], indirect=True)
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_writers_do_not_trust_the_cache(gated, directory, layout) -> None:
    """A cache with wrong bytes under right checksums shows who reads it."""
    from b2array.store import disk_cache

    _, url, options = gated
    x = values()
    b2array.asarray(x, url=url, layout=layout, chunks=CHUNKS, blocks=BLOCKS, storage_options=options)
    read_all(url, x, storage_options=options)
    b2array.open(url, storage_options=options)[:]
    lied = []
    original = disk_cache._read_record

    def lie(*arguments: object) -> memoryview:
        lied.append(arguments)
        view = original(*arguments)
        view[len(view) // 2] ^= 255
        return view

    disk_cache._read_record = lie
    try:
        a = b2array.open(url, "r+", storage_options=options)
        a[3, 4, 5] = x[3, 4, 5] = -1
        with a.transaction():
            a[50, 60:70, 5:9] = x[50, 60:70, 5:9] = -2
            assert a[50, 65, 6] == -2
        a.resize((121, 130, 64))
        a.snapshot("kept")
        a[50, 60:70, 5:9] = -3
        a.restore("kept")
        a[50, 0] = 0
        a.restore("kept")
        b2array.repack(url, storage_options=options)
        assert b2array.verify(url, deep=True, storage_options=options).ok
    finally:
        disk_cache._read_record = original
    assert not lied
    with config.using(disk_cache=None):
        np.testing.assert_array_equal(b2array.open(url, storage_options=options)[:120], x)


@pytest.mark.parametrize("cloud", ["s3"], indirect=True)
def test_writers_of_a_group_do_not_trust_the_cache(cloud, cloud_url, monkeypatch) -> None:
    from b2array.store import disk_cache

    url, options = f"{cloud_url}/g.b2d", cloud.options
    group = b2array.open_group(url, "w", storage_options=options)
    with group.transaction() as changes:
        changes["x"], changes["y"] = values()[:3], values()[:4]
    for _ in range(2):
        b2array.open_group(url, storage_options=options)["x"][:]
    writer = b2array.open_group(url, "r+", storage_options=options)
    assert [*writer] == ["x", "y"]
    # What a writer has listed from the cache, it reads again.
    asked = []
    original = disk_cache._read_record
    monkeypatch.setattr(disk_cache, "_read_record", lambda *args: asked.append(args) or original(*args))
    with writer.transaction() as changes:
        changes["x"][0, 0, 0] = -5
        changes["z"] = values()[:2]
    writer["y"][0, 0, 0] = -6
    assert not asked
    reader = b2array.open_group(url, storage_options=options)
    assert (reader["x"][0, 0, 0], reader["y"][0, 0, 0], [*reader]) == (-5, -6, ["x", "y", "z"])
