"""Stores through fsspec: how many requests they make, what they lose and show when something fails."""

from __future__ import annotations

import asyncio
import base64
import gc
import multiprocessing
import pickle
import re
import socket
import subprocess
import sys
import traceback
import tracemalloc
import zipfile
from pathlib import Path

import fsspec.core
import numpy as np
import pytest
from fsspec.asyn import get_loop, sync
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.local import LocalFileSystem
from interrupts import works

import b2array
from b2array import config
from b2array.errors import ConflictError, FormatError, LimitError
from b2array.store import remote, upload
from b2array.store import s3 as s3_store
from b2array.store.base import Head, Version
from b2array.store.file_systems import address_of
from b2array.store.open import open_store
from b2array.store.spans import Span

ROOT = Path(__file__).parents[2]
CONTENT = bytes(range(256)) * 400


@pytest.fixture
def obstore(request):
    """Say whether obstore may send requests. If it fails, the client of fsspec is asked once more."""
    with config.using(obstore=request.param):
        yield request.param


with_and_without_obstore = pytest.mark.parametrize("obstore", [False, True], indirect=True)


def read(store, *spans, **options):
    return [bytes(view) for view in store.read([Span(*span) for span in spans], **options)]


# ---- requests ----


def test_adjacent_spans_are_one_request_for_no_byte_more(http):
    http.objects["a"] = CONTENT
    spans = [("", start, start + 100) for start in range(1000, 6000, 100)]
    assert read(open_store(http.url_of("a")), *spans) == [CONTENT[start:stop] for _, start, stop in spans]
    assert len(http.requests) == 1
    assert http.nbytes_asked == 5000


@pytest.mark.parametrize(("gap", "count"), [(49_999, 2), (50_000, 1)])
def test_the_gap_decides_about_distant_spans(http, gap, count):
    http.objects["a"] = CONTENT
    with config.using(coalesce_gap=gap):
        read(open_store(http.url_of("a")), ("", 0, 100), ("", 50_100, 50_200))
    assert len(http.requests) == count


def test_a_long_span_is_not_joined_with_others(http, monkeypatch):
    monkeypatch.setattr(remote, "_READ_LIMIT", 1000)
    http.objects["a"] = CONTENT
    spans = [("", start, start + 500) for start in range(0, 5000, 500)]
    assert read(open_store(http.url_of("a")), *spans) == [CONTENT[start:stop] for _, start, stop in spans]
    assert len(http.requests) == 5


def test_objects_are_requested_at_the_same_time(http):
    http.objects |= {f"a/{number}": CONTENT for number in range(5)}
    http.delay = 0.1
    read(open_store(http.url_of("a")), *((str(number), 0, 10) for number in range(5)))
    assert len(http.requests) == 5
    assert http.most_under_way == 5


def test_two_candidates_are_probed_in_one_wave(http):
    http.objects["a/chunks.b2frame"] = CONTENT
    http.delay = 0.1
    missing, found = open_store(http.url_of("a")).head(["", "chunks.b2frame"], 100)
    assert isinstance(missing, FileNotFoundError)
    assert bytes(found.data) == CONTENT[:100]
    assert len(http.requests) == http.most_under_way == 2


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_would_wait_for_its_own_thread_is_refused(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))

    async def ask():
        return store.stamp("")

    with pytest.raises(OSError, match="a loop in another thread"):
        sync(get_loop(), ask)
    with pytest.raises(OSError, match="a loop in another thread"):
        open_store(http.url_of("a"), storage_options={"asynchronous": True}).stamp("")
    assert asyncio.run(ask()) == store.stamp("")
    gc.collect()  # what was refused goes here, and not in another test


def test_making_and_unpickling_a_store_asks_nothing(http):
    pickle.loads(pickle.dumps(open_store(http.url_of("a"))))
    assert http.requests == []


def test_nothing_wanted_is_nothing_asked(http):
    assert read(open_store(http.url_of("a")), ("", 5, 5)) == [b""]
    assert http.requests == []


# ---- HTTP ----


def test_a_server_without_ranges_is_read_as_well(http):
    http.objects["a"] = CONTENT
    http.ranges = False
    store = open_store(http.url_of("a"))
    assert read(store, ("", 7, 70), ("", 50_000, 50_070)) == [CONTENT[7:70], CONTENT[50_000:50_070]]
    assert bytes(store.head([""], 64, offset=3)[0].data) == CONTENT[3:67]
    with pytest.raises(FormatError, match=f"expected 10 bytes at {len(CONTENT)}, found 0"):
        read(store, ("", len(CONTENT), len(CONTENT) + 10))


def test_ranges_are_those_of_the_uncompressed_object_and_keep_the_headers_of_the_user(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"), storage_options={"headers": {"X-Mine": "yes"}})
    read(store, ("", 7, 70), expected=store.stamp("").version)
    assert {"X-Mine": "yes", "Accept-Encoding": "identity", "If-Match": store.stamp("").version.tag}.items() <= (
        http.headers[1].items()
    )


def test_names_stand_in_front_of_the_query(http):
    http.objects |= {"a": CONTENT, "a/b": CONTENT[5:]}
    store = open_store(http.url_of("a?signature=abcdefgh"))
    assert read(store, ("", 0, 9), ("b", 0, 9)) == [CONTENT[:9], CONTENT[5:14]]
    assert sorted(path for _, path, _ in http.requests) == ["/a/b?signature=abcdefgh", "/a?signature=abcdefgh"]


@pytest.mark.parametrize(
    ("status", "expected"), [(403, PermissionError), (401, PermissionError), (500, OSError), (503, OSError)]
)
@with_and_without_obstore
def test_a_status_is_that_error_and_never_a_missing_object(http, obstore, status, expected):
    http.objects["a"] = CONTENT
    http.statuses["a"] = status
    store = open_store(http.url_of("a"))
    with config.using(retries=1):
        (probed,) = store.head([""], 64)
        errors = [probed]
        for ask in (lambda: read(store, ("", 0, 9)), lambda: store.stamp("")):
            with pytest.raises(Exception, match=str(status)) as caught:
                ask()
            errors.append(caught.value)
    for error in errors:
        assert type(error) is expected
        assert http.url_of("a") in str(error)
        assert error.__cause__.status == status
    if not obstore:
        assert len(http.requests) == 3 * (1 if status < 500 else 2)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_refused_connection_is_not_a_missing_object():
    pytest.importorskip("aiohttp")
    store = open_store(f"http://127.0.0.1:{free_port()}/a")
    for ask in (lambda: read(store, ("", 0, 9)), lambda: store.stamp("")):
        with pytest.raises(OSError, match="onnect") as caught:
            ask()
        assert not isinstance(caught.value, FileNotFoundError)


def test_a_timeout_is_a_timeout(http):
    aiohttp = pytest.importorskip("aiohttp")
    http.objects["a"] = CONTENT
    http.delay = 1.0
    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.1)}}
    with pytest.raises(TimeoutError, match=http.url_of("a")):
        read(open_store(http.url_of("a"), storage_options=options), ("", 0, 9))


# What answers do: each is sent by hand, as many times as `replies` says, before the server answers as it should.

CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 102400\r\n\r\n" + CONTENT[:150]
SLOW = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"


def ranged(content, what, *headers):
    lines = [b"HTTP/1.1 206 Partial Content", b"Content-Range: " + what, b"Content-Length: %d" % len(content), *headers]
    return b"\r\n".join([*lines, b"", content])


@pytest.mark.parametrize(
    "reply",
    [
        SLOW,
        SLOW.replace(b"503", b"429"),
        b"",  # the connection is closed
        "reset",
        ranged(CONTENT[100:200], b"bytes 100-199/102400")[:-10],
        # Without a length, only the range shows that the end is missing.
        ranged(CONTENT[100:190], b"bytes 100-199/102400").replace(b"Content-Length: 90\r\n", b""),
        ranged(CONTENT[0:100], b"bytes 0-99/102400"),
        ranged(CONTENT[200:300], b"bytes 200-299/102400"),
        ranged(CONTENT[100:150], b"bytes 100-149/102400"),
        ranged(CONTENT[100:200], b"bytes 100-199/102400", b"Content-Encoding: gzip"),
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n\r\n" + CONTENT[:100],
        CUT,
        b"HTTP/1.1 416 No\r\nContent-Range: bytes */102400\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=repr,
)
@with_and_without_obstore
def test_an_answer_with_other_bytes_is_not_believed(http, obstore, reply):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    assert read(store, ("", 0, 5)) == [CONTENT[:5]]
    for count in (1, 2):
        http.replies[:] = [reply] * count
        assert read(store, ("", 100, 200)) == [CONTENT[100:200]]
    http.replies[:] = [reply] * 2
    assert bytes(store.head([""], 100, offset=100)[0].data) == CONTENT[100:200]
    http.replies[:] = [reply] * 9
    with config.using(retries=1), pytest.raises(OSError, match=r"expected|Slow|reset|payload|isconnect") as caught:
        read(store, ("", 100, 200))
    assert type(caught.value) in (OSError, ConnectionResetError)
    assert http.url_of("a") in str(caught.value)
    if not obstore:
        assert len(http.replies) == (5 if reply in (b"", "reset") else 7)  # aiohttp itself connects again once


def test_an_object_that_was_replaced_is_noticed_even_if_the_server_ignores_the_condition(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    (head,) = store.head([""], 10)
    assert head.stamp == store.stamp("")
    http.objects["a"] = CONTENT[::-1]
    http.replies[:] = [ranged(CONTENT[10:20], b"bytes 10-19/102400", b'ETag: "another"')]
    for _ in range(2):
        with pytest.raises(ConflictError, match="refresh"):
            read(store, ("", 10, 20), expected=head.stamp.version)


def test_a_server_whose_tags_tell_nothing_is_named_and_a_copy_can_be_read(http, tmp_path):
    http.objects["a.b2nd"] = b2array.asarray(np.arange(1000), chunks=(100,)).to_bytes()
    http.fickle = True
    store = open_store(http.url_of("a.b2nd"))
    with pytest.raises(ConflictError, match=f"another ETag in each answer .* open simplecache::{store.url}"):
        read(store, ("", 0, 10), expected=store.stamp("").version)
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    assert b2array.open(f"simplecache::{store.url}", storage_options=options)[:].sum() == 499_500
    http.fickle = False
    version = store.stamp("").version
    http.objects["a.b2nd"] = CONTENT
    with pytest.raises(ConflictError, match="changed since it was opened"):
        read(store, ("", 0, 10), expected=version)


def test_a_server_without_ranges_is_read_to_the_end_of_the_span_only(http):
    http.objects["a"] = bytes(2**26)
    http.ranges = False
    store = open_store(http.url_of("a"))
    assert store.stamp("").size == 2**26
    tracemalloc.start()
    assert bytes(store.head([""], 100, offset=50)[0].data) == bytes(100)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_the_bytes_before_a_span_are_not_taken_for_those_behind_the_end(http):
    http.objects["a"] = CONTENT[:100]
    http.ranges = False
    store = open_store(http.url_of("a"))
    assert read(store, ("", 60, 160), clip=True) == [CONTENT[60:100]]
    with pytest.raises(FormatError, match="expected 100 bytes at 60, found 40"):
        read(store, ("", 60, 160))


@pytest.mark.parametrize("ranges", [True, False])
def test_an_empty_object_has_a_stamp(http, ranges):
    http.objects["a"] = b""
    http.ranges = ranges
    store = open_store(http.url_of("a"))
    assert store.stamp("").size == 0
    (head,) = store.head([""], 10)
    assert (bytes(head.data), head.stamp) == (b"", store.stamp(""))


def test_an_answer_of_a_cloud_that_is_cut_off_is_no_damage(cloud, cloud_url, monkeypatch):
    store = open_store(f"{cloud_url}/a", storage_options=cloud.options)
    store.create("", CONTENT)
    get = type(store)._get

    async def cut(*args):
        content, stamp = await get(*args)
        return content[:50], stamp

    monkeypatch.setattr(type(store), "_get", cut)
    monkeypatch.setattr(config, "obstore", False)
    with config.using(retries=1):
        (probed,) = store.head([""], 100, offset=100)
    assert "expected 100 bytes at 100, found 50: the answer is incomplete" in str(probed)
    for clip in (False, True):
        with config.using(retries=1), pytest.raises(OSError, match="answer is incomplete"):
            read(store, ("", 100, 200), clip=clip)
    assert len(read(store, ("", len(CONTENT) - 50, len(CONTENT) + 50), clip=True)[0]) == 50


def test_a_store_that_cannot_connect_gives_that_error_as_the_head(cloud, monkeypatch):
    import fsspec

    def fail(*_, **__):
        raise OSError("no credentials")

    if "obstore" in cloud.kind:
        pytest.skip("the file system is there already: it connects with the first request")
    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    store = open_store(f"{cloud.protocol}://bucket/a", storage_options=cloud.options)
    expected = f"{store.url}: no credentials"
    assert [(type(error), str(error)) for error in store.head(["", "b"], 10)] == [(OSError, expected)] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_child_connects_for_itself_and_its_parent_goes_on(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))

    def work():
        if read(store, ("", 5, 50)) != [CONTENT[5:50]]:
            raise ValueError
        gc.collect()

    found = []
    assert read(store, ("", 0, 9)) == [CONTENT[:9]]
    for _ in range(3):
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert works(lambda: found.extend(read(store, ("", 7, 70))))
    assert found == [CONTENT[7:70]] * 3


# ---- chains ----


def test_an_archive_is_read_through_http(http, tmp_path):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("inside/a", CONTENT)
    http.objects["archive.zip"] = (tmp_path / "archive.zip").read_bytes()
    store = open_store(f"zip://inside::{http.url_of('archive.zip')}")
    assert read(store, ("a", 7, 70)) == [CONTENT[7:70]]


def test_an_archive_that_is_missing_is_an_error_when_it_is_read(tmp_path):
    store = open_store(f"zip://inside::{tmp_path}/archive.zip")
    assert all(isinstance(error, FileNotFoundError) for error in store.head(["", "a"], 10))
    with pytest.raises(FileNotFoundError):
        read(store, ("a", 0, 1))


def test_a_cache_asks_once_and_survives_a_missing_neighbour(http, tmp_path):
    http.objects |= {"a/1": CONTENT, "a/2": CONTENT[1:]}
    store = open_store(
        f"simplecache::{http.url_of('a')}", storage_options={"simplecache": {"cache_storage": str(tmp_path)}}
    )
    one, missing, two = store.head(["1", "0", "2"], 10)
    assert isinstance(missing, FileNotFoundError)
    assert (bytes(one.data), bytes(two.data)) == (CONTENT[:10], CONTENT[1:11])
    http.requests.clear()
    assert read(store, ("1", 500, 600), ("2", 0, 10)) == [CONTENT[500:600], CONTENT[1:11]]
    assert http.requests == []


def test_a_cache_reads_ranges_with_versions_of_fsspec_whose_ranges_copy_nothing(http, tmp_path, monkeypatch):
    def ranges_of_copies(fs, paths, starts, ends, max_gap=None, on_error="return", **options):  # as in fsspec 2026.4.0
        copies = [fs._check_file(path) for path in paths]
        return LocalFileSystem().cat_ranges(copies, starts, ends, max_gap=max_gap, on_error=on_error, **options)

    monkeypatch.setattr(SimpleCacheFileSystem, "cat_ranges", ranges_of_copies)
    http.objects["a"] = CONTENT
    store = open_store(
        f"simplecache::{http.url_of('a')}", storage_options={"simplecache": {"cache_storage": str(tmp_path)}}
    )
    assert read(store, ("", 500, 600), ("", 0, 10)) == [CONTENT[500:600], CONTENT[:10]]


@pytest.mark.parametrize("chain", ["simplecache", "filecache"])
@pytest.mark.parametrize("reply", [SLOW, "reset", CUT])
def test_a_cache_keeps_nothing_of_a_copy_that_failed(http, tmp_path, chain, reply):
    http.objects["a"] = CONTENT
    store = open_store(f"{chain}::{http.url_of('a')}", storage_options={chain: {"cache_storage": str(tmp_path)}})
    http.replies[:] = [reply] * 9
    with pytest.raises(Exception, match=r".") as caught:
        read(store, ("", 6000, 6010))
    assert not isinstance(caught.value, FileNotFoundError | FormatError)
    http.replies.clear()
    assert read(store, ("", 6000, 6010)) == [CONTENT[6000:6010]]


# ---- secrets ----


def shown(error):
    return "".join(traceback.format_exception(error)) + repr(error) + str(error) + str(vars(error))


def errors_of(store):
    yield from (found for found in store.head(["", "b"], 10) if isinstance(found, Exception))
    for ask in (
        lambda: read(store, ("", 0, 9)),
        lambda: read(store, ("b", 5, 2)),
        lambda: store.stamp("b"),
        lambda: store.listing(),
        lambda: store.create("b", b"x"),
        lambda: store.replace("b", b"x", expected=Version("1")),
        lambda: store.delete(["b"]),
        lambda: store.append("b", 0, b""),
    ):
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not show a secret
            yield error


@pytest.mark.parametrize("status", [404, 403, 401, 416, 412, 500])
@pytest.mark.parametrize("chain", ["", "simplecache::", "zip://x::"])
def test_no_message_shows_what_stands_in_a_url_or_in_headers(http, tmp_path, status, chain):
    http.statuses |= {"a": status, "a/b": status}
    place = http.url.replace("http://", "http://somebody:pass-word@")
    options = {"headers": {"X-Api-Key": "sesame-open"}}
    if chain:
        options = {"http": options, "simplecache": {"cache_storage": str(tmp_path)}}
    store = open_store(f"{chain}{place}/a?X-Amz-Signature=12%2F34-5678", storage_options=options)
    basic = base64.b64encode(b"somebody:pass-word").decode()
    with config.using(retries=1):
        texts = [repr(store), store.url, *(shown(error) for error in errors_of(store))]
    assert len(texts) >= 8
    for text in texts:
        for secret in ("somebody", "pass-word", basic, "sesame-open", "12%2F34", "12/34", "Signature"):
            assert secret not in text


def test_no_message_shows_keys_of_an_object_store():
    pytest.importorskip("s3fs")
    options = {
        "key": "the-access-key",
        "secret": "the-secret-key",
        "endpoint_url": f"http://127.0.0.1:{free_port()}",
        "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 0.2},
    }
    store = open_store("s3://bucket/a", storage_options=options)
    texts = [repr(store), store.url]
    for ask in (lambda: store.stamp(""), lambda: open_store("s3://b/a", storage_options={**options, "x": 1}).stamp("")):
        with pytest.raises(Exception, match=r".") as caught:
            ask()
        texts.append(shown(caught.value))
    assert not any(secret in text for text in texts for secret in ("the-access-key", "the-secret-key"))


def test_errors_without_secrets_keep_their_cause(http):
    import aiohttp

    http.statuses["a"] = 403
    with pytest.raises(PermissionError) as caught:
        read(open_store(http.url_of("a")), ("", 0, 9))
    assert isinstance(caught.value.__cause__, aiohttp.ClientResponseError)


# ---- S3 ----


@pytest.fixture
def s3(bucket, s3_options):
    return open_store(f"s3://{bucket}/a/array.b2nd", storage_options=s3_options)


def test_s3_probes_candidates_with_their_stamps_in_one_request_each(s3, s3_calls):
    stamp = s3.create("chunks.b2frame", CONTENT)
    s3_calls.clear()
    missing, found = s3.head(["", "chunks.b2frame"], 100)
    assert isinstance(missing, FileNotFoundError)
    assert (bytes(found.data), found.stamp) == (CONTENT[:100], stamp)
    assert s3_calls == ["get_object", "get_object"]


def test_s3_needs_no_listing_and_one_request_an_operation(s3, s3_calls):
    stamp = s3.create("a", CONTENT)
    stamp = s3.replace("a", CONTENT[1:], expected=stamp.version)
    assert s3.stamp("a") == stamp
    assert read(s3, ("a", 0, 9), ("a", 9, 20)) == [CONTENT[1:10], CONTENT[10:21]]
    assert read(s3, ("a", 0, 9), expected=stamp.version) == [CONTENT[1:10]]
    s3.delete(["a"])
    assert s3_calls == ["put_object", "put_object", "head_object", "get_object", "get_object", "delete_objects"]


def test_s3_missing_without_permission_to_list_is_that_error(s3, s3_calls, monkeypatch):
    import s3fs

    async def forbidden(*_, **__):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", forbidden)
    with pytest.raises(PermissionError, match="Access Denied"):
        read(s3, ("a", 0, 9))


def test_s3_many_conditional_reads_do_not_wait_for_each_other(s3):
    stamp = s3.create("a", CONTENT)
    spans = [("a", start, start + 10) for start in range(0, 4000, 100)]
    with config.using(coalesce_gap=0):
        assert read(s3, *spans, expected=stamp.version) == [CONTENT[start:stop] for _, start, stop in spans]


def test_s3_reads_over_wider_gaps_if_not_all_requests_can_be_under_way_at_once(s3, s3_calls):
    content = bytes(range(256)) * 100
    s3.create("a", content)
    few = s3._options | {"config_kwargs": {"max_pool_connections": 20}}
    store = open_store(s3.url, storage_options=few)
    for gap, count, requests in (0, 19, 19), (10, 18, 18), (10, 19, 1):
        spans = [("a", start, start + 10) for start in range(0, 100 * count, 100)]
        s3_calls.clear()
        with config.using(coalesce_gap=gap):
            assert read(store, *spans) == [content[start:stop] for _, start, stop in spans]
        assert len(s3_calls) == requests


def test_s3_shows_no_secret_if_the_first_read_cannot_connect(s3, monkeypatch):
    def fail(url, **options):
        raise ValueError(f"cannot connect to {url} with {options}")

    store = pickle.loads(pickle.dumps(s3))
    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    for spans in [("a", 0, 9)], [("a", 0, 9), ("a", 10**6, 10**6 + 9)]:
        with pytest.raises(OSError, match=re.escape("'secret': '***'")):
            read(store, *spans)


def test_s3_has_more_connections_than_its_client_asks_for_unless_the_user_says_how_many(bucket, s3_options):
    import s3fs

    url = f"s3://{bucket}/other"
    few = {**s3_options, "config_kwargs": {"max_pool_connections": 5}}
    given = s3fs.S3FileSystem(**s3_options, skip_instance_cache=True)
    stores = [open_store(url, storage_options={**s3_options, "use_ssl": False}), open_store(url, storage_options=few)]
    with pytest.raises(FileNotFoundError):
        stores[0].stamp("missing")
    assert [store.connections for store in stores] == [48, 3]
    address, options = address_of(url, None, given)
    assert open_store(address, storage_options=options).connections == 8


@pytest.mark.parametrize("size", [11, pytest.param(101, marks=pytest.mark.slow)])
def test_s3_keeps_the_condition_above_the_size_of_multipart_uploads(s3, s3_calls, size):
    stamp = s3.create("a", b"before")
    s3._connect()[0].default_block_size = 5 * 2**20  # s3fs sends twice this in parts
    big = bytes(size * 2**20)
    s3_calls.clear()
    s3.replace("a", big, expected=stamp.version)
    with pytest.raises(ConflictError):
        s3.replace("a", big, expected=stamp.version)
    assert s3_calls == ["put_object", "put_object"]


def test_s3_refuses_a_conditional_object_that_is_too_large(s3, monkeypatch):
    monkeypatch.setattr(s3_store.S3Store, "put_limit", 10)
    with pytest.raises(LimitError, match="11 bytes are too many"):
        s3.replace("a", bytes(11), expected=Version('"tag"'))


def test_s3_deletes_in_batches(s3, s3_calls, monkeypatch):
    monkeypatch.setattr(s3_store, "_DELETE_LIMIT", 2)
    for name in "abcde":
        s3.create(name, b"x")
    s3_calls.clear()
    s3.delete("abcde")
    assert s3_calls == ["delete_objects"] * 3
    assert all(isinstance(each, FileNotFoundError) for each in s3.head([*"abcde"], 10))


INCREMENT = """
import json, sys
from b2array.errors import ConflictError
from b2array.store.spans import Span
from b2array.store.open import open_store
store = open_store(sys.argv[1], storage_options=json.loads(sys.argv[2]))
for _ in range(8):
    while True:
        stamp = store.stamp("")
        try:
            count = int(bytes(store.read([Span("", 0, stamp.size)], expected=stamp.version)[0]))
            store.replace("", str(count + 1).encode(), expected=stamp.version)
            break
        except ConflictError:
            pass
"""


@pytest.mark.slow
def test_s3_loses_no_update_between_processes(bucket, s3_options):
    import json

    url = f"s3://{bucket}/count"
    store = open_store(url, storage_options=s3_options)
    store.create("", b"0")
    command = [sys.executable, "-c", INCREMENT, url, json.dumps(s3_options)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert read(store, ("", 0, 2)) == [b"24"]


def test_s3_sees_what_others_write(s3, s3_options):
    other = open_store(s3.url, storage_options=s3_options)
    before = s3.create("a", CONTENT)
    assert {*s3.listing()} == {"a"}
    other.create("b", CONTENT)
    other.replace("a", CONTENT[:50])
    assert {name: size for name, (size, _) in s3.listing().items()} == {"a": 50, "b": len(CONTENT)}
    assert s3.stamp("a") != before
    (head,) = s3.head(["a"], 100)
    assert isinstance(head, Head)
    assert head.stamp.size == 50


def test_an_object_in_memory_and_objects_below_its_name_do_not_exclude_each_other(tmp_path):
    url = f"memory://{tmp_path.name}/a"
    open_store(url).create("below", b"1")
    store = open_store(url)
    store.create("", b"2")
    assert bytes(store.read([Span("", 0, 1)])[0]) == b"2"
    assert store.walk() == ["below"]
    with pytest.raises(FileExistsError):
        store.create("", b"3")
    store.delete(["below"])
    assert store.walk() == []


@pytest.mark.parametrize("nbytes", [1, upload.WHOLE + 1])
def test_an_object_in_memory_is_not_made_below_another_one(tmp_path, nbytes):
    url = f"memory://{tmp_path.name}/a"
    open_store(url).create("", b"1")
    with pytest.raises(NotADirectoryError, match="a/below"):
        open_store(url).create("below", iter([bytes(nbytes)]))
    assert open_store(f"memory://{tmp_path.name}").walk() == ["a"]


@pytest.mark.parametrize(
    ("url", "path", "expected"),
    [
        ("memory://a/g.b2d/x/y.b2nd", "x/y.b2nd", "memory://a/g.b2d"),
        ("memory://g.b2d/y.b2nd", "y.b2nd", "memory://g.b2d"),
        ("memory://y.b2nd", "y.b2nd", "memory://"),
        ("simplecache::memory://g.b2d/y.b2nd", "y.b2nd", "simplecache::memory://g.b2d"),
        ("memory://g.b2d/y.b2nd", "x/y.b2nd", None),
        ("memory://g.b2d/my.b2nd", "y.b2nd", None),
        ("/g.b2d/y.b2nd", "y.b2nd", None),
    ],
)
def test_the_directory_in_which_a_store_is_at_a_path_is_found(url, path, expected):
    store_of = open_store(url).around(path)
    assert (None if store_of is None else store_of("").url) == expected
    if store_of is not None:
        assert store_of(path).url == url
