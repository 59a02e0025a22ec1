"""Reads through obstore in place of the client of fsspec: when they happen, and that they mean the same."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from servers import RangeServer

import b2array
from b2array import config
from b2array.errors import ConflictError
from b2array.store import ranges
from b2array.store.base import Head
from b2array.store.open import open_store
from b2array.store.spans import Span

pytest.importorskip("obstore")
pytest.importorskip("aiohttp")

CONTENT = bytes(range(256)) * 40
KEYS = {"key": "the-access-key", "secret": "the-secret-key"}


def read(store, *spans, **options):
    return [bytes(view) for view in store.read([Span(*span) for span in spans], **options)]


def clients(http: RangeServer) -> list[str]:
    """Name the client of each request, and forget the requests."""
    agents = [each["User-Agent"] for each in http.headers]
    http.headers.clear()
    http.requests.clear()
    return ["obstore" if "object_store" in agent else "fsspec" for agent in agents]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


# ---- HTTP ----


def test_an_array_is_opened_and_read_through_obstore_unless_a_setting_forbids_it(http):
    data = np.arange(100_000).reshape(100, 1000)
    http.objects["a.b2nd"] = b2array.asarray(data, chunks=(10, 1000)).to_bytes()
    with config.using(cache_bytes=0):
        a = b2array.open(http.url_of("a.b2nd"))
        assert np.array_equal(a[3:50, 7], data[3:50, 7])
        assert {*clients(http)} == {"obstore"}
        with config.using(obstore=False):
            assert np.array_equal(a[3:50, 7], data[3:50, 7])
        assert {*clients(http)} == {"fsspec"}
        assert np.array_equal(pickle.loads(pickle.dumps(a))[60], data[60])
        assert {*clients(http)} == {"obstore"}
    with pytest.raises(ValueError, match=r"b2array.config.obstore must be True or False, not 'no'"):
        config.obstore = "no"


def test_both_clients_send_as_many_requests(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    spans = [("", start, start + 10) for start in (0, 5000, 10_230)]
    counts = []
    for wanted in (True, False):
        with config.using(obstore=wanted, coalesce_gap=10):
            answers = read(store, *spans), store.ends(["", "missing"], 100, 50)
            counts.append(len(http.requests))
        assert answers[0] == [CONTENT[start:stop] for _, start, stop in spans]
        (head, missing), tail = answers[1]
        assert (bytes(head.data), head.stamp) == (CONTENT[:100], store.stamp(""))
        assert isinstance(missing, FileNotFoundError)
        assert missing.filename == http.url_of("a/missing")
        assert (bytes(tail.data), tail.start, tail.version) == (CONTENT[-50:], len(CONTENT) - 50, head.version)
        clients(http)
    assert counts[0] == counts[1] == 6


def test_long_ranges_are_decoded_where_they_are(http):
    data = np.random.default_rng(0).random((16, 50_000))
    http.objects["a.b2nd"] = b2array.asarray(data, chunks=(4, 50_000), blocks=(1, 5_000)).to_bytes()
    for wanted in (True, False):
        with config.using(obstore=wanted, cache_bytes=0):
            a = b2array.open(http.url_of("a.b2nd"))
            assert np.array_equal(a[...], data)
            assert np.array_equal(a[2:10, 7_000:20_000], data[2:10, 7_000:20_000])


@pytest.mark.parametrize("count", [2, 40])
def test_requests_are_under_way_at_the_same_time_whatever_the_server_did_before(http, count):
    http.objects["a"] = bytes(count * 10_000)
    spans = [("", 10_000 * n, 10_000 * n + 10) for n in range(count)]
    store = open_store(http.url_of("a"))
    read(store, *spans)
    http.most_under_way = 0
    for delay in (0.1, 0.5, 2.0):  # a busy machine needs the longer ones
        http.delay = delay
        read(store, *spans)
        if http.most_under_way == count:
            break
    assert http.most_under_way == count
    assert {*clients(http)} == {"obstore"}


def test_headers_are_passed_on(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"), storage_options={"headers": {"X-Mine": "yes"}})
    assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
    assert (http.headers[-1].get("X-Mine"), http.headers[-1].get("Accept-Encoding")) == ("yes", "identity")
    assert clients(http) == ["obstore"]


@pytest.mark.parametrize(
    "options",
    [
        {"client_kwargs": {"headers": {"X-Mine": "yes"}}},
        {"cookies": {"session": "1"}},
        {"encoded": True},
        {"timeout": 5},
    ],
    ids=repr,
)
def test_other_options_leave_requests_to_the_client_that_knows_them(http, options):
    http.objects["a"] = CONTENT
    assert read(open_store(http.url_of("a"), storage_options=options), ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["fsspec"]


@pytest.mark.parametrize("path", ["a?signature=1234", "a%20b", "a/./b", "ä"])
def test_urls_that_clients_might_write_in_different_ways_do_so_as_well(http, path):
    http.objects |= {"a": CONTENT, "a%20b": CONTENT, "a/./b": CONTENT, "a/b": CONTENT, "%C3%A4": CONTENT}
    assert read(open_store(http.url_of(path)), ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["fsspec"]


def test_a_proxy_in_the_environment_does_so_as_well(http, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"), storage_options={"headers": {"X-Mine": "proxied"}})
    assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["fsspec"]


def test_a_server_without_ranges_is_left_to_the_client_that_copes_with_it(http):
    http.objects["a"] = CONTENT
    http.ranges = False
    store = open_store(http.url_of("a"), storage_options={"headers": {"X-Mine": "without ranges"}})
    for _ in range(5):
        assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["obstore", "fsspec"] * 3 + ["fsspec"] * 2
    http.ranges = True
    assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["fsspec"]


def test_a_server_without_ranges_of_the_last_bytes_is_not_asked_for_them_twice(http):
    http.objects["a"] = CONTENT
    http.ends = False
    heads, tail = open_store(http.url_of("a")).ends([""], 10, 20)
    assert (bytes(heads[0].data), tail) == (CONTENT[:10], None)
    assert clients(http) == ["obstore"] * 2


@pytest.mark.parametrize("line", [b"Content-Type: text/html", b"Content-Encoding: gzip"])
def test_pages_and_compressed_bytes_are_not_taken_for_those_of_the_object(http, line):
    http.objects["a"] = CONTENT
    lines = [b"HTTP/1.1 206 Partial Content", b"Content-Range: bytes 5-8/100", b"Content-Length: 4", line, b"", b"page"]
    http.replies[:] = [b"\r\n".join(lines)]
    assert read(open_store(http.url_of("a")), ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["obstore", "fsspec"]


def test_a_replaced_object_is_noticed(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    version = store.stamp("").version
    assert read(store, ("", 5, 9), expected=version) == [CONTENT[5:9]]
    assert clients(http)[-1] == "obstore"
    http.objects["a"] = CONTENT[::-1]
    with pytest.raises(ConflictError, match="changed since it was opened"):
        read(store, ("", 5, 9), expected=version)


def test_a_tag_that_tells_nothing_is_no_condition(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    http.tags = False
    (head,) = store.head([""], 10)
    assert (bytes(head.data), head.stamp, head.unique) == (CONTENT[:10], None, "")
    assert read(store, ("", 5, 9), expected=store.stamp("").version) == [CONTENT[5:9]]
    assert "obstore" in clients(http)


def test_threads_read_at_the_same_time(http):
    http.objects["a"] = CONTENT
    store, wrong = open_store(http.url_of("a")), []

    def work(seed: int) -> None:
        starts = np.random.default_rng(seed).integers(0, len(CONTENT) - 100, (10, 8))
        for row in starts.tolist():
            with config.using(coalesce_gap=0):
                spans = [("", start, start + 50) for start in row]
                wrong.extend(
                    span for span, got in zip(spans, read(store, *spans), strict=True) if got != expected(span)
                )

    def expected(span) -> bytes:
        return CONTENT[span[1] : span[2]]

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_forked_process_reads_by_the_client_of_fsspec(http):
    http.objects["a"] = CONTENT
    store = open_store(http.url_of("a"))
    read(store, ("", 5, 9))
    assert clients(http) == ["obstore"]
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(read(store, ("", 5, 9))))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == [CONTENT[5:9]]
    child.join(60)
    assert child.exitcode == 0
    assert clients(http) == ["fsspec"]
    assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
    assert clients(http) == ["obstore"]


def test_without_obstore_everything_works_as_well(http):
    http.objects["a"] = CONTENT
    program = f"""
import sys
sys.modules["obstore"] = None
from b2array.store.open import open_store
from b2array.store.spans import Span
assert bytes(open_store({http.url_of("a")!r}).read([Span("", 5, 9)])[0]) == {CONTENT[5:9]!r}
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=__file__.rpartition("tests")[0])
    assert clients(http) == ["fsspec"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.b2nd/0000000A.chunk", True), (".b2data/year=2020", True), ("a//b", False), ("..", False), ("a/", False)],
)
def test_plain_paths_have_parts_of_plain_letters(path, expected):
    assert ranges.is_plain(path) is expected


# ---- clouds ----

# A server of ranges is as good as one of S3, as far as reading is concerned, and shows the requests.

_SAID = ("X-Amz-Security-Token", "X-Amz-Request-Payer")


def said(http: RangeServer) -> tuple[object, ...]:
    """Return the key and the region of the last request's signature, and headers that options add."""
    credential = (http.headers[-1].get("Authorization") or "").partition("Credential=")[2].partition(",")[0].split("/")
    return (credential[0], *credential[2:3], *(http.headers[-1].get(name) for name in _SAID))


@pytest.fixture
def _bare(monkeypatch, tmp_path):
    """Leave no credentials in the environment."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key-of-env", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "token-of-env"}


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        (KEYS, {}, ("the-access-key", "us-east-1", None, None)),
        ({**KEYS, "token": "the-token"}, {}, ("the-access-key", "us-east-1", "the-token", None)),
        (KEYS, ENVIRONMENT, ("the-access-key", "us-east-1", None, None)),
        ({}, ENVIRONMENT, ("key-of-env", "us-east-1", "token-of-env", None)),
        ({**KEYS, "requester_pays": True}, {}, ("the-access-key", "us-east-1", None, "requester")),
        ({**KEYS, "client_kwargs": {"region_name": "eu-west-1"}}, {}, ("the-access-key", "eu-west-1", None, None)),
        (KEYS, {"AWS_DEFAULT_REGION": "eu-north-1"}, ("the-access-key", "eu-north-1", None, None)),
        (KEYS, {"AWS_SKIP_SIGNATURE": "true"}, ("the-access-key", "us-east-1", None, None)),
        ({"anon": True}, ENVIRONMENT, ("", None, None)),
        ({"profile": "weather"}, {}, ("key-of-profile", "eu-west-3", None, None)),
        ({"profile": "weather"}, ENVIRONMENT, ("key-of-profile", "eu-west-3", None, None)),
    ],
    ids=repr,
)
def test_s3_is_asked_with_the_same_credentials(http, monkeypatch, tmp_path, options, environment, expected):
    pytest.importorskip("s3fs")
    (tmp_path / "config").write_text("[profile weather]\nregion = eu-west-3\n")
    (tmp_path / "credentials").write_text(
        "[weather]\naws_access_key_id = key-of-profile\naws_secret_access_key = another\n"
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    http.objects["bucket/a"] = CONTENT
    options = {**options, "endpoint_url": http.url, "skip_instance_cache": True}
    store = open_store("s3://bucket/a", storage_options=options)
    for wanted, client in ((True, "obstore"), (False, "fsspec")):
        with config.using(obstore=wanted):
            assert read(store, ("", 5, 9)) == [CONTENT[5:9]]
        assert said(http) == expected
        assert clients(http) == [client]


@pytest.mark.usefixtures("_bare")
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({"config_kwargs": {"read_timeout": 5}}, {}),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}}}, {}),
        ({"client_kwargs": {"verify": False}}, {}),
        ({"s3_additional_kwargs": {"RequestPayer": "requester"}}, {}),
        ({"version_aware": True}, {}),
        ({}, {"AWS_SSE_CUSTOMER_KEY_BASE64": "eA=="}),
        ({}, {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}),
    ],
    ids=repr,
)
def test_what_obstore_does_not_know_of_s3_is_left_to_s3fs(http, monkeypatch, options, environment):
    pytest.importorskip("s3fs")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    http.objects["bucket/a"] = CONTENT
    options = {**KEYS, "endpoint_url": http.url, "skip_instance_cache": True, **options}
    assert read(open_store("s3://bucket/a", storage_options=options), ("", 5, 9)) == [CONTENT[5:9]]
    assert "obstore" not in clients(http)


def test_google_is_asked_without_a_token_if_gcsfs_has_none(http):
    pytest.importorskip("gcsfs")
    options = {"endpoint_url": http.url, "project": "p", "token": "anon"}
    (head,) = open_store("gs://bucket/a", storage_options=options).head([""], 10)
    assert isinstance(head, FileNotFoundError)
    assert http.headers[0].get("Authorization") is None
    assert clients(http) == ["obstore"]


@pytest.mark.parametrize("cloud", ["s3", "gcs", "azure"], indirect=True)
def test_versions_are_the_same_whoever_reads(cloud, cloud_url):
    store = open_store(f"{cloud_url}/a", storage_options=cloud.options)
    made = store.create("", CONTENT)
    for wanted in (True, False):
        with config.using(obstore=wanted):
            head, missing = store.head(["", "missing"], 10)
            assert isinstance(head, Head)
            assert isinstance(missing, FileNotFoundError)
            assert head.stamp == made == store.stamp("")
            assert read(store, ("", 5, 9), ("", 9000, 9010), expected=made.version) == [
                CONTENT[5:9],
                CONTENT[9000:9010],
            ]
    store.replace("", CONTENT[::-1])
    for wanted in (True, False):
        with config.using(obstore=wanted), pytest.raises(ConflictError):
            read(store, ("", 5, 9), expected=made.version)
    client = type(store)._get

    async def refuse(*args):
        raise AssertionError("expected a read through obstore")

    try:
        type(store)._get = refuse
        assert read(store, ("", 0, 4)) == [CONTENT[::-1][:4]]
    finally:
        type(store)._get = client
