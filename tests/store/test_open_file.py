"""Arrays in files that the caller has opened."""

from __future__ import annotations

import bz2
import gzip
import io
import multiprocessing
import pickle
import sys
import tarfile
import tempfile
import threading
import zipfile
from contextlib import ExitStack, contextmanager

import fsspec
import numpy as np
import pytest

import b2array
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError
from b2array.store.open import open_store
from b2array.store.open_file import OpenFileStore

DATA = np.arange(200 * 500, dtype="i4").reshape(200, 500)
KINDS = (
    "file",
    "unbuffered",
    "bytes",
    "temporary",
    "gzip",
    "zip",
    "zip deflated",
    "tar",
    "fsspec",
    "fsspec opened",
    "fsspec gzip",
    "fsspec memory",
    "s3",
    "http opened",
)


@pytest.fixture(autouse=True)
def _uncached():
    with b2array.config.using(cache_bytes=0):
        yield


@pytest.fixture
def path(tmp_path):
    b2array.asarray(DATA, url=tmp_path / "a.b2nd", chunks=(50, 500), blocks=(5, 50))
    return tmp_path / "a.b2nd"


@contextmanager
def opened(kind, path, request):  # noqa: C901 - one branch for each kind
    content = path.read_bytes()
    with tempfile.TemporaryFile() as temporary:
        if kind == "file":
            with path.open("rb") as file:
                yield file
        elif kind == "unbuffered":
            with path.open("rb", buffering=0) as file:
                yield file
        elif kind == "bytes":
            yield io.BytesIO(content)
        elif kind == "temporary":
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                yield file
        elif kind == "gzip":
            with gzip.open(path.with_suffix(".gz"), "wb") as file:
                file.write(content)
            with gzip.open(path.with_suffix(".gz")) as file:
                yield file
        elif kind in ("zip", "zip deflated"):
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED if " " in kind else zipfile.ZIP_STORED) as made:
                made.writestr("inside/a.b2nd", content)
            with zipfile.ZipFile(temporary) as made, made.open("inside/a.b2nd") as file:
                yield file
        elif kind == "tar":
            with tarfile.open(fileobj=temporary, mode="w") as made:
                made.add(path, "a.b2nd")
            temporary.seek(0)
            with tarfile.open(fileobj=temporary) as made, made.extractfile("a.b2nd") as file:
                yield file
        elif kind == "fsspec":
            yield fsspec.open(str(path))
        elif kind == "fsspec opened":
            with fsspec.open(str(path)) as file:
                yield file
        elif kind == "fsspec gzip":
            path.with_suffix(".bz2").write_bytes(bz2.compress(content))
            yield fsspec.open(str(path.with_suffix(".bz2")), compression="bz2")
        elif kind == "fsspec memory":
            fsspec.filesystem("memory").pipe_file(f"/{path.parent.name}/a", content)
            yield fsspec.open(f"memory://{path.parent.name}/a")
        elif kind == "s3":
            options = request.getfixturevalue("s3_options")
            place = f"s3://{request.getfixturevalue('bucket')}/a"
            with fsspec.open(place, "wb", **options) as file:
                file.write(content)
            yield fsspec.open(place, **options)
        else:
            server = request.getfixturevalue("http")
            server.objects["a"] = content
            with fsspec.open(server.url_of("a")) as file:
                yield file


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_is_read_from_an_open_file(kind, path, request):
    with opened(kind, path, request) as file:
        a = b2array.open(file)
        assert a.mode == "r"
        assert np.array_equal(a[7::9, 33], DATA[7::9, 33])
        assert np.array_equal(a[...], DATA)
        a.refresh()
        assert a[199, 499] == DATA[199, 499]
        assert np.array_equal(b2array.load(file), DATA)
        a.close()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_disturb_each_other_in_an_open_file(kind, path, request):
    wrong = []
    with opened(kind, path, request) as file:
        handles = [b2array.open(file)] * 2 + [b2array.open(file)] * 2

        def work(seed):
            rows = [(n * 7 + seed * 31) % 200 for n in range(12)]
            wrong.extend(row for row in rows if not np.array_equal(handles[seed][row], DATA[row]))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handles[0].close()
        handles[-1].close()
    assert not wrong


def test_a_file_is_read_lazily_and_a_file_on_disk_keeps_its_position(path):
    class Counting(io.BytesIO):
        nbytes = 0

        def read(self, size=-1, /):
            found = super().read(size)
            Counting.nbytes += len(found)
            return found

    noise = np.random.default_rng(0).random((200, 5000))
    file = Counting(b2array.asarray(noise, chunks=(10, 5000), blocks=(1, 5000)).to_bytes())
    a = b2array.open(file)
    assert np.array_equal(a[3], noise[3])
    assert Counting.nbytes < noise.nbytes / 20
    with path.open("rb") as file:
        file.seek(5)
        assert b2array.open(file)[3, 3] == DATA[3, 3]
        assert file.tell() == 5


def test_a_frame_inside_an_open_file_is_found_by_its_offset(path):
    file = io.BytesIO(b"before" + path.read_bytes() + b"behind")
    assert np.array_equal(b2array.open(file, offset=6)[...], DATA)


@pytest.mark.parametrize("mode", ["r+", "a", "w", "x"])
def test_an_open_file_can_only_be_read(path, mode):
    with path.open("rb") as file, pytest.raises(ReadOnlyError, match="an open file can only be read"):
        b2array.open(file, mode)
    store = OpenFileStore(io.BytesIO(b"x"))
    for write in (lambda: store.create("", b"x"), lambda: store.replace("", b"x"), lambda: store.delete([""])):
        with pytest.raises(ReadOnlyError):
            write()


def test_what_cannot_be_read_is_named(path):
    with path.open() as file, pytest.raises(TypeError, match="opened as text"):
        b2array.open(file)
    with pytest.raises(TypeError, match="opened as text"):
        b2array.open(fsspec.open(str(path), "r"))
    with pytest.raises(TypeError, match="an open file needs none"):
        b2array.open(io.BytesIO(b""), storage_options={"anon": True})
    with pytest.raises(FormatError, match="open file of the class BytesIO"):
        b2array.open(io.BytesIO(b"no frame at all" * 20))
    with path.open("rb") as file:
        a = b2array.open(file)
    with pytest.raises(ValueError, match="closed file"):
        a[3]


def test_a_cut_file_is_a_format_error(path):
    content = path.read_bytes()
    with pytest.raises(FormatError, match="cut off"):
        b2array.open(io.BytesIO(content[:-500]))


def test_handles_pickle_if_their_files_do(path):
    for file in (fsspec.open(str(path)), io.BytesIO(path.read_bytes())):
        assert np.array_equal(pickle.loads(pickle.dumps(b2array.open(file)))[7], DATA[7])
    with path.open("rb") as file, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(b2array.open(file))


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_fork_reads_files_on_disk_and_refuses_files_with_a_position(path):
    def read(a, pipe):
        try:
            pipe.send(a[7].tolist())
        except UnsupportedError as error:
            pipe.send(str(error))

    def in_a_fork(a):
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=read, args=(a, theirs))
        process.start()
        assert ours.poll(60)
        answer = ours.recv()
        process.join(10)
        return answer

    with path.open("rb") as file:
        assert in_a_fork(b2array.open(file)) == DATA[7].tolist()
    assert in_a_fork(b2array.open(io.BytesIO(path.read_bytes()))) == DATA[7].tolist()
    with zipfile.ZipFile(path.parent / "x.zip", "w") as made:
        made.write(path, "a")
    with zipfile.ZipFile(path.parent / "x.zip") as made, made.open("a") as file:
        assert "shares its position" in in_a_fork(b2array.open(file))


def test_a_plain_file_of_fsspec_is_read_by_requests_of_its_own(http, path):
    http.objects["a"] = path.read_bytes()
    store = open_store(fsspec.open(http.url_of("a")))
    assert type(store).__name__ == "HttpStore"


@pytest.mark.parametrize("kind", ["disk", "memory", "fsspec", "entry"])
@pytest.mark.parametrize("open_it", [b2array.open, b2array.open_group])
def test_a_group_is_read_from_an_archive_that_is_open(kind, open_it, tmp_path):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    group["x"], group["inner/y"] = DATA, DATA + 1
    group.attrs["place"] = "roof"
    b2array.convert(tmp_path / "g.b2d", tmp_path / "g.b2z")
    content = (tmp_path / "g.b2z").read_bytes()
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as outer:
        outer.writestr("g.b2z", content)
    with ExitStack() as stack:
        if kind == "disk":
            file = stack.enter_context((tmp_path / "g.b2z").open("rb"))
        elif kind == "memory":
            file = io.BytesIO(content)
        elif kind == "fsspec":
            file = fsspec.open(f"file://{tmp_path}/g.b2z")
        else:
            file = stack.enter_context(stack.enter_context(zipfile.ZipFile(tmp_path / "outer.zip")).open("g.b2z"))
        found = open_it(file)
        assert list(found) == ["inner", "x"]
        assert found.attrs["place"] == "roof"
        assert np.array_equal(found["x"][...], DATA)
        assert np.array_equal(found["inner/y"][...], DATA + 1)
        with pytest.raises(ReadOnlyError):
            found["z"] = DATA
        with pytest.raises(ReadOnlyError):
            open_it(file, "r+")


def test_an_open_file_that_is_no_archive_is_no_group(path):
    with path.open("rb") as file, pytest.raises(FormatError, match="expected a group, found a frame"):
        b2array.open_group(file)
    with pytest.raises(FormatError, match="expected a zip archive, found"):
        b2array.open_group(io.BytesIO(b"nothing of ours"))
    with pytest.raises(FormatError):
        b2array.open(io.BytesIO(b"PK\3\4" + bytes(100)))["x"]
