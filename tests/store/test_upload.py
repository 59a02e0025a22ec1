"""Large content on its way to other places: in parts, as a whole or not at all, and never all of it in memory."""

from __future__ import annotations

import asyncio
import tracemalloc

import fsspec
import numpy as np
import pytest
from clouds import KINDS as CLOUDS
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

import b2array
from b2array import bloscpack
from b2array.codec.cparams import CParams
from b2array.store import upload
from b2array.store.cloud import UploadPart
from b2array.store.gcs import GcsStore
from b2array.store.open import open_store
from b2array.store.spans import Span

pytestmark = pytest.mark.crossed

MIB = 2**20


class Buffered(AbstractFileSystem):
    """Objects that are there when their file is complete, as most clients of object stores write them."""

    protocol = "b2array-buffered"
    cachable = False
    objects: dict[str, bytes] = {}  # noqa: RUF012

    def _open(self, path, mode="rb", block_size=MIB, autocommit=True, **options):
        return BufferedFile(self, path, mode, block_size, autocommit, **options)

    def info(self, path, **_):
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file"}

    def cat_file(self, path, start=None, end=None, **_):
        return self.objects[path][start:end]

    def pipe_file(self, path, value, **_):
        self.objects[path] = bytes(value)


class BufferedFile(AbstractBufferedFile):
    def _initiate_upload(self):
        self.parts = []

    def _upload_chunk(self, final=False):
        self.parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self):
        self.fs.objects[self.path] = b"".join(self.parts)


class InDirectories(LocalFileSystem):
    """Files in real directories, reached like something distant."""

    protocol = "b2array-directories"


@pytest.fixture(params=[5, pytest.param(None, marks=pytest.mark.slow)])
def part(request, monkeypatch):
    """The size of parts in MiB: the smallest that S3 takes in an ordinary run, and else the usual one."""
    if request.param:
        monkeypatch.setattr(upload, "PART", request.param * MIB)
        monkeypatch.setattr(upload, "WHOLE", request.param * MIB)
    return upload.PART


@pytest.fixture(params=["memory", *CLOUDS, "buffered", "directories"])
def place(request, tmp_path, part):
    """An address and its options."""
    if request.param in CLOUDS:
        cloud = request.getfixturevalue("cloud_of")(request.param)
        return f"{cloud.make_bucket(next(request.getfixturevalue('_bucket_names')))}/big", cloud.options
    if request.param == "memory":
        return f"memory://{tmp_path.name}/upload/big", {}
    kind = {"buffered": Buffered, "directories": InDirectories}[request.param]
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    return f"{kind.protocol}://{tmp_path}/new/big", {}


def large(seed: int = 0):
    """Yield more than is written in one request, in pieces of odd sizes."""
    rng = np.random.default_rng(seed)
    for _ in range(16):
        yield rng.bytes(upload.WHOLE // 11 + 17)


def content(store) -> bytes:
    return bytes(store.read([Span("", 0, store.stamp("").size)])[0])


@given(st.lists(st.binary(max_size=40)), st.sampled_from([bytes, bytearray, memoryview]))
def test_parts_are_the_content(pieces, kind):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upload, "PART", 4)
        patch.setattr(upload, "WHOLE", 16)
        patch.setattr(upload, "_EQUAL", 3)
        found = upload.split(kind(piece) for piece in pieces)
        expected = b"".join(pieces)
        if isinstance(found, bytes):
            assert len(found) <= 16
            assert found == expected
            return
        parts = list(found)
    assert b"".join(parts) == expected
    assert len(expected) > 16
    assert [len(part) for part in parts[:-1]] == [4 << number // 3 for number in range(len(parts) - 1)]


def test_a_buffer_that_is_used_again_does_no_harm(monkeypatch):
    monkeypatch.setattr(upload, "PART", 7)
    monkeypatch.setattr(upload, "WHOLE", 14)
    buffer = bytearray(5)

    def pieces():
        for number in range(9):
            buffer[:] = bytes([number]) * 5
            yield buffer

    assert b"".join(upload.split(pieces())) == b"".join(bytes([number]) * 5 for number in range(9))


def test_large_content_is_written_and_replaced(place):
    url, options = place
    store = open_store(url, storage_options=options)
    stamp = store.create("", large())
    assert content(store) == b"".join(large())
    assert stamp == store.stamp("")
    other = store.replace("", large(1))
    assert content(store) == b"".join(large(1))
    assert other == store.stamp("")
    assert not store._connect()[0].transaction.files


def test_what_exists_stays(place):
    url, options = place
    store = open_store(url, storage_options=options)
    store.create("", b"before")
    with pytest.raises(FileExistsError):
        store.create("", large())
    assert content(store) == b"before"


def test_a_source_that_fails_leaves_what_was_there_and_its_own_error(place):
    url, options = place
    store = open_store(url, storage_options=options)

    def broken():
        yield from large()
        raise FileNotFoundError("the source")

    with pytest.raises(FileNotFoundError, match=r"^the source$"):
        store.create("", broken())
    with pytest.raises(FileNotFoundError):
        store.stamp("")
    store.create("", b"before")
    with pytest.raises(FileNotFoundError, match=r"^the source$"):
        store.replace("", broken())
    assert content(store) == b"before"


@pytest.fixture
def s3(bucket, s3_options):
    return open_store(f"s3://{bucket}/big", storage_options=s3_options)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("failing", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
def test_s3_a_request_that_fails_leaves_what_was_there_and_no_parts(s3, bucket, s3_options, failing, monkeypatch):
    import s3fs

    s3.create("", b"before")
    original = s3fs.S3FileSystem._call_s3
    asked = []

    async def call_s3(self, method, *args, **parameters):
        asked.append(method)
        if method == failing and (method != "upload_part" or parameters["PartNumber"] == 2):
            raise ConnectionResetError("the line is dead")
        return await original(self, method, *args, **parameters)

    from fsspec.asyn import sync_wrapper

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", call_s3)
        patch.setattr(s3fs.S3FileSystem, "call_s3", sync_wrapper(call_s3))
        with pytest.raises(ConnectionResetError, match="the line is dead"):
            s3.replace("", large())
    assert failing in asked
    assert content(s3) == b"before"
    found = s3fs.S3FileSystem(**s3_options).call_s3("list_multipart_uploads", Bucket=bucket)
    assert "Uploads" not in found


@pytest.mark.usefixtures("part")
def test_a_creator_who_comes_between_is_noticed_at_the_end(cloud, cloud_url):
    store = open_store(f"{cloud_url}/big", storage_options=cloud.options)

    def overtaken():
        yield from large()
        store.create("", b"the other one's")

    with pytest.raises(FileExistsError):
        store.create("", overtaken())
    assert content(store) == b"the other one's"


@pytest.mark.usefixtures("part")
def test_a_creator_who_sends_parts_in_between_is_noticed(cloud, cloud_url):
    store = open_store(f"{cloud_url}/big", storage_options=cloud.options)

    def overtaken():
        yield from large()
        store.create("", large(1))

    with pytest.raises(FileExistsError):
        store.create("", overtaken())
    assert content(store) == b"".join(large(1))


@pytest.mark.usefixtures("part")
def test_s3_creating_what_exists_sends_no_parts(s3, s3_calls):
    s3.create("", b"before")
    s3_calls.clear()
    with pytest.raises(FileExistsError):
        s3.create("", large())
    assert s3_calls == ["head_object"]


# What is made of it.


@pytest.fixture
def big(tmp_path, part):
    """Many times as much as a part, which takes no memory."""
    return b2array.zeros((18 * part // MIB, MIB), "u1", url=tmp_path / "big.b2nd", chunks=(4, MIB))


@pytest.mark.parametrize("name", ["x.blp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("x.npy", "x.h5"))])
def test_files_go_to_s3_without_being_in_memory(name, big, bucket, s3_options, monkeypatch):
    pytest.importorskip("h5py")
    options = {"cparams": CParams(clevel=0)}
    monkeypatch.setattr("b2array.exchange.convert._BUDGET", 8 * MIB)
    url = f"s3://{bucket}/{name}"
    open_store(url, storage_options=s3_options).create("warm", b"")
    with b2array.config.using(cache_bytes=0):
        tracemalloc.start()
        try:
            b2array.convert(big.url, url, dst_options=s3_options, **options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert open_store(url, storage_options=s3_options).stamp("").size > big.nbytes
    assert peak < big.nbytes * 0.7


def test_a_conversion_whose_upload_fails_leaves_what_was_there(big, bucket, s3_options, monkeypatch):
    url = f"s3://{bucket}/x.blp"
    bloscpack.pack(b"before", url, storage_options=s3_options)

    async def failing(*_):
        raise TimeoutError("too slow")

    with monkeypatch.context() as patch:
        patch.setattr(type(open_store(url, storage_options=s3_options)), "_send_part", failing)
        with pytest.raises(TimeoutError, match="too slow"):
            b2array.convert(big.url, url, overwrite=True, dst_options=s3_options, cparams=CParams(clevel=0))
    assert bloscpack.unpack(url, storage_options=s3_options) == b"before"
    with pytest.raises(FileExistsError, match="overwrite"):
        b2array.convert(big.url, url, dst_options=s3_options)


@pytest.mark.parametrize("ranges", [(None,) * 9, ("bytes=0-4",) * 9, ("bytes=0-99",)])
def test_google_is_not_asked_forever_to_continue_an_upload(ranges):
    class Stuck:
        answers = iter(ranges)

        async def _call(self, *_, **__):
            found = next(self.answers)
            return {} if found is None else {"Range": found}, b""

    store = GcsStore("gs://bucket/a", {"token": "anon"})
    with pytest.raises(OSError, match="expected an upload to continue"):
        asyncio.run(store._send_part(Stuck(), "bucket/a", "session", UploadPart(0, 0, bytes(10), None)))
