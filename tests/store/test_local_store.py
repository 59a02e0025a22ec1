"""Local files: descriptors, atomic writing, and the lock file."""

from __future__ import annotations

import errno
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array import bloscpack, buffers, config
from b2array.errors import ConflictError, FormatError
from b2array.store import disk, local_store
from b2array.store.base import Version
from b2array.store.endings import TEMPORARY
from b2array.store.local_store import LocalStore
from b2array.store.spans import Span

CONTENT = bytes(range(256)) * 40
ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and POSIX files")


def read(store, *spans, **options):
    return [bytes(view) for view in store.read([Span(*span) for span in spans], **options)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "array.b2frame"
    path.write_bytes(CONTENT)
    return path


def names(directory):
    return [path.name for path in Path(directory).iterdir()]


def in_child(work):
    """Run in a forked process, and tell whether it went well."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    return process.exitcode == 0


# ---- reading ----


@pytest.fixture
def offsets(monkeypatch):
    """Where calls of the system begin to read."""
    found = []
    original = disk.read_into

    def read_into(fd, views, offset):
        found.append(offset)
        return original(fd, views, offset)

    monkeypatch.setattr(disk, "read_into", read_into)
    return found


@pytest.mark.parametrize(("gap", "calls"), [(0, 3), (99, 3), (100, 2), (1000, 1)])
def test_adjacent_spans_are_one_call_and_near_ones_by_the_allowed_gap(file, offsets, gap, calls):
    spans = [("", start, start + 10) for start in range(0, 100, 10)] + [("", 200, 210), ("", 400, 410)]
    with config.using(coalesce_gap=gap):
        assert read(LocalStore(file), *spans) == [CONTENT[start:stop] for _, start, stop in spans]
    assert len(offsets) == calls


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = "import sys, b2array; b2array.open(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "pipe"], capture_output=True, timeout=60, check=False)
    assert b"FormatError" in done.stderr
    assert b"found an empty file" in done.stderr


def test_reads_that_return_less_than_asked_are_continued(file, monkeypatch):
    original = disk.read_into

    def read_into(fd, views, offset):
        return original(fd, [views[0][:100]], offset)

    monkeypatch.setattr(disk, "read_into", read_into)
    assert read(LocalStore(file), ("", 5, 5000)) == [CONTENT[5:5000]]
    gathered = LocalStore(file).gather([Span("", 5, 300), Span("", 300, 900)], [0, 300], 900)
    assert (gathered[:295], gathered[300:]) == (CONTENT[5:300], CONTENT[300:900])


def test_what_is_gathered_comes_to_its_places_in_one_call_a_piece_of_the_file(file, offsets, monkeypatch):
    monkeypatch.setattr(local_store, "_IOV_MAX", 3)
    ends = [100, 150, 200, 200, 300, 400, 500, 900]
    spans = [*map(Span, [""] * 7, ends, ends[1:]), Span("", 2000, 2001)]
    places = [3 + 10 * n + start - 100 for n, start in enumerate(ends[:-1])] + [1000]
    found = LocalStore(file).gather(spans, places, 1001)
    for (_, start, stop), place in zip(spans, places, strict=True):
        assert found[place : place + stop - start] == CONTENT[start:stop]
    assert offsets == [100, 200, 500, 2000]


def test_only_what_is_read_must_be_in_the_file_not_the_room_around_it(file, monkeypatch):
    monkeypatch.setattr(buffers, "_unused", buffers._ThreadBuffers())
    monkeypatch.setattr(local_store, "_TRUSTED_ROOM", len(CONTENT) // 2)
    assert LocalStore(file).gather([Span("", 0, len(CONTENT))], [100], len(CONTENT) + 500)[100:-400] == CONTENT
    monkeypatch.setattr(buffers, "_unused", buffers._ThreadBuffers())
    with pytest.raises(FormatError, match=f"expected {len(CONTENT) + 1} bytes, found {len(CONTENT)}"):
        LocalStore(file).gather([Span("", 0, len(CONTENT) + 1)], [0], len(CONTENT) + 1)


@posix
@pytest.mark.parametrize("change", [lambda file: LocalStore(file).replace("", b"less"), Path.unlink])
def test_much_is_read_from_a_file_that_was_replaced_or_removed_meanwhile(file, monkeypatch, change):
    store = LocalStore(file)
    store.head([""], 1)
    change(file)
    monkeypatch.setattr(buffers, "_unused", buffers._ThreadBuffers())
    monkeypatch.setattr(local_store, "_TRUSTED_ROOM", len(CONTENT) // 2)
    assert store.gather([Span("", 0, len(CONTENT))], [0], len(CONTENT)) == CONTENT


def test_what_is_cut_off_while_it_is_read_was_no_part_of_the_frame(tmp_path, monkeypatch):
    """A killed writer leaves bytes behind the frame, and the next one cuts them off."""
    url = tmp_path / "a.b2nd"
    b2array.zeros((4, 100), url=url, chunks=(1, 100))
    with url.open("ab") as remains:
        remains.write(bytes(9000))
    original = disk.read_into

    def meanwhile(fd, views, offset):
        monkeypatch.setattr(disk, "read_into", original)
        b2array.open(url, mode="r+")[0] = 1
        return original(fd, views, offset)

    monkeypatch.setattr(disk, "read_into", meanwhile)
    reader = b2array.open(url)
    assert set(reader[...].ravel().tolist()) <= {0, 1}
    assert b2array.open(url)[0, 0] == 1


def test_a_read_that_is_cut_off_gives_what_is_left_only_where_less_is_allowed(file, monkeypatch):
    original, store = disk.read_into, LocalStore(file)

    def meanwhile(fd, views, offset):
        monkeypatch.setattr(disk, "read_into", original)
        os.truncate(file, 150)
        return original(fd, views, offset)

    monkeypatch.setattr(disk, "read_into", meanwhile)
    assert read(store, ("", 100, 200), clip=True) == [CONTENT[100:150]]
    file.write_bytes(CONTENT)
    monkeypatch.setattr(disk, "read_into", meanwhile)
    with pytest.raises(FormatError, match="expected 100 bytes at 100, found 50"):
        read(store, ("", 100, 200))


def test_a_platform_without_preadv_reads_the_same(file, monkeypatch):
    monkeypatch.delattr(os, "preadv", raising=False)
    spec = importlib.util.spec_from_file_location("disk_without_preadv", disk.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.read_into is not disk.read_into
    assert module.read_into.__globals__["_seeking"]
    monkeypatch.setattr(disk, "read_into", module.read_into)
    assert read(LocalStore(file), ("", 5, 5000), ("", 9000, 9001)) == [CONTENT[5:5000], CONTENT[9000:9001]]


def test_the_old_bytes_stay_readable_until_the_head_is_read_again(file):
    reader, writer = LocalStore(file), LocalStore(file)
    version = reader.head([""], 64)[0].stamp.version
    writer.replace("", CONTENT[::-1])
    assert read(reader, ("", 0, 9), expected=version) == [CONTENT[:9]]
    new = reader.head([""], 64)[0].stamp.version
    assert read(reader, ("", 0, 9), expected=new) == [CONTENT[::-1][:9]]
    with pytest.raises(ConflictError):
        read(reader, ("", 0, 9), expected=version)


def test_a_store_sees_what_it_has_replaced_itself(file):
    store = LocalStore(file)
    read(store, ("", 0, 9))
    store.replace("", b"new bytes")
    assert read(store, ("", 0, 9)) == [b"new bytes"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
def test_descriptors_are_not_leaked(tmp_path, file):
    def opened() -> list[str]:
        # What other tests have left to the garbage collector does not count.
        links = []
        for number in names("/proc/self/fd"):
            with suppress(FileNotFoundError):
                links.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        return [link for link in links if link.startswith((str(tmp_path), str(file)))]

    sparse, single = LocalStore(tmp_path / "sparse"), LocalStore(file)
    for number in range(20):
        sparse.create(f"{number}", CONTENT)
        with sparse.lock("0"), sparse.lock("0", shared=False) if number < 0 else sparse.lock("", shared=True):
            read(sparse, *((f"{each}", 0, 5) for each in range(number + 1)))
        single.head(["", "missing"], 10)
    assert opened() == [str(file)]
    single.close()
    assert opened() == []


def test_the_path_is_fixed_when_the_store_is_made(file, monkeypatch, tmp_path):
    monkeypatch.chdir(file.parent)
    store = LocalStore(file.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read(store, ("", 0, 9)) == [CONTENT[:9]]


@posix
def test_a_forked_child_reads_through_the_same_store(file):
    store = LocalStore(file)
    read(store, ("", 0, 9))

    def work():
        if read(store, ("", 5, 500)) != [CONTENT[5:500]]:
            raise ValueError

    assert in_child(work)
    assert read(store, ("", 7, 70)) == [CONTENT[7:70]]


# ---- writing ----


def broken_pieces():
    yield b"the first half"
    raise RuntimeError("no second half")


def test_a_write_that_fails_changes_nothing_and_leaves_nothing(file):
    store = LocalStore(file)
    with pytest.raises(RuntimeError):
        store.replace("", broken_pieces())
    with pytest.raises(RuntimeError):
        LocalStore(file.parent).create("new", broken_pieces())
    assert file.read_bytes() == CONTENT
    assert names(file.parent) == [file.name]


def test_an_error_of_the_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b2array.save(tmp_path / "a.b2nd", np.arange(9))
    a = b2array.open(tmp_path / "a.b2nd")
    (tmp_path / "x.blp").mkdir()
    with pytest.raises(IsADirectoryError, match=r"x\.blp"):
        bloscpack.open(tmp_path / "x.blp")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "read_into", fails)
    with pytest.raises(OSError, match=r"a\.b2nd") as caught:
        a[...]
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_creation_is_exclusive_without_hard_links_too(tmp_path, monkeypatch, number):
    def link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    store = LocalStore(tmp_path)
    store.create("a", b"content")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # another writer comes first
    with pytest.raises(FileExistsError) as caught:
        store.create("a", b"other")
    assert caught.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert names(tmp_path) == ["a"]


def test_directories_are_made_when_something_is_written(tmp_path):
    LocalStore(tmp_path / "x" / "array.b2nd").create("chunks.b2frame", b"index")
    LocalStore(tmp_path / "y" / "array.b2frame").replace("", b"frame")
    assert (tmp_path / "x" / "array.b2nd" / "chunks.b2frame").read_bytes() == b"index"
    assert (tmp_path / "y" / "array.b2frame").read_bytes() == b"frame"


@posix
@pytest.mark.parametrize("offset", [0, 10**6])
def test_a_directory_is_no_empty_file_where_the_system_says_that_it_has_no_bytes(tmp_path, monkeypatch, offset):
    status = os.stat_result([*tmp_path.stat()[:6], 0, 0, 0, 0])
    monkeypatch.setattr(os, "fstat", lambda _: status)
    (found,) = LocalStore(tmp_path).head([""], 10, offset=offset)
    assert isinstance(found, IsADirectoryError)


@posix
def test_replacing_keeps_permissions_and_symbolic_links(file):
    file.chmod(0o640)
    link = file.parent / "link"
    link.symlink_to(file)
    LocalStore(link).replace("", b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640


@posix
def test_a_new_file_has_the_permissions_that_the_user_asks_for(tmp_path):
    before = os.umask(0o027)
    try:
        LocalStore(tmp_path).create("a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_write_reaches_the_disk(file, monkeypatch, durable):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    directory = file.parent / "sparse"
    store = LocalStore(file)
    with config.using(durable=durable):
        LocalStore(directory).create("a", b"x")
        created = len(synced)
        store.append("", len(CONTENT), b"more")
        store.patch("", 0, b"x")
        store.replace("", b"y")
    if not durable:
        assert synced == []
        return
    inodes = {(directory / "a").stat().st_ino, directory.stat().st_ino, file.parent.stat().st_ino}
    assert inodes <= set(synced[:created]) or sys.platform == "win32"
    assert file.stat().st_ino in synced[created:]


def test_the_name_of_the_store_also_deletes_an_empty_directory(tmp_path):
    store = LocalStore(tmp_path / "array.b2nd")
    store.create("a", b"x")
    with pytest.raises(OSError, match="not empty"):
        store.delete([""])
    store.delete(["a", "", ""])
    assert names(tmp_path) == []


@posix
@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_files(file):
    script = f"""
from b2array.store.local_store import LocalStore
store, chunks = LocalStore({str(file)!r}), LocalStore({str(file.parent / "chunks")!r})
print("started", flush=True)
for number in itertools.count():
    store.replace("", [bytes([number % 256]) * 1000] * 100)
    chunks.create(str(number), [bytes([number % 256]) * 1000] * 100)
"""
    for round_ in range(3):
        command = [sys.executable, "-c", script.replace("count()", f"count({round_ * 10**6})")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            process.stdout.readline()
            time.sleep(0.01 + 0.01 * round_)
            process.send_signal(signal.SIGKILL)
        chunks = [path for path in (file.parent / "chunks").glob("*") if path.suffix != TEMPORARY]
        for path in (file, *chunks):
            content = path.read_bytes()
            assert content in (CONTENT, content[:1] * 100_000)


# ---- the lock ----


def counter(path):
    return int.from_bytes(path.read_bytes()[8:16], "little")


def test_exclusive_locks_raise_the_counter_and_shared_ones_do_not(file):
    store = LocalStore(file)
    sidecar = file.parent / (file.name + ".b2lock")
    with store.lock("", shared=True):
        assert not sidecar.exists()
    for count in (1, 2, 3):
        with store.lock(""):
            assert counter(sidecar) == count
        with store.lock("", shared=True):
            assert counter(sidecar) == count
    assert len(sidecar.read_bytes()) == 16


def test_a_sparse_store_is_locked_inside_its_directory(tmp_path):
    (tmp_path / "array.b2nd").mkdir()
    with LocalStore(tmp_path / "array.b2nd").lock("chunks.b2frame"):
        assert counter(tmp_path / "array.b2nd" / ".b2lock") == 1


@pytest.mark.parametrize("name", ["", "chunks.b2frame"])
def test_a_lock_makes_no_directory_for_a_frame_that_is_gone(tmp_path, name):
    gone = tmp_path / "gone" if name == "" else tmp_path / "gone" / "array.b2nd"
    with pytest.raises(FileNotFoundError) as caught, LocalStore(tmp_path / "gone" / "array.b2nd").lock(name):
        pass
    assert caught.value.filename == str(gone)
    assert names(tmp_path) == []


def increment(path, times):
    store = LocalStore(path)
    for _ in range(times):
        with store.lock(""):
            store.close()
            stamp = store.stamp("")
            count = int(read(store, ("", 0, stamp.size))[0])
            store.replace("", str(count + 1).encode(), expected=stamp.version)


@posix
def test_no_update_is_lost_between_processes(tmp_path):
    path = tmp_path / "count"
    path.write_bytes(b"0")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=increment, args=(path, 40)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert path.read_bytes() == b"160"
    assert counter(tmp_path / "count.b2lock") == 160


HOLDER = """
import sys, time
from b2array.store.local_store import LocalStore
with LocalStore(sys.argv[1]).lock("", shared=len(sys.argv) > 2):
    print("locked", flush=True)
    time.sleep(60)
"""


def holder(path, *shared):
    command = [sys.executable, "-c", HOLDER, str(path), *shared]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout.readline().strip() == b"locked"
    return process


@posix
def test_a_file_and_a_symbolic_link_to_it_have_one_lock(file):
    link, taken = file.with_name("link"), threading.Event()
    link.symlink_to(file.name)

    def take():
        with LocalStore(file).lock(""):
            taken.set()

    other = threading.Thread(target=take)
    with LocalStore(link).lock(""):
        other.start()
        assert not taken.wait(0.3)
        assert is_locked(link)  # where the C library looks, if it was given the link
    other.join(30)
    assert taken.is_set()
    assert not is_locked(link)


@posix
def test_a_killed_holder_releases_the_lock(file):
    with holder(file) as process:
        process.kill()
    with LocalStore(file).lock(""):
        pass


@posix
def test_shared_locks_stand_together_and_keep_writers_away(file):
    with LocalStore(file).lock(""):
        pass
    with holder(file, "shared") as process:
        with LocalStore(file).lock("", shared=True):
            pass
        assert is_locked(file)
        process.kill()
    assert not is_locked(file)


def is_locked(file):
    import fcntl

    with Path(f"{file}.b2lock").open("rb") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class InChildError(Exception):
    pass


@posix
def test_a_child_forked_inside_a_lock_does_not_release_it(file):
    try:
        with LocalStore(file).lock(""):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # other tests have left threads
                child = os.fork()
            if child == 0:
                raise InChildError
            assert os.waitpid(child, 0)[1] == 0
            assert is_locked(file)
    except InChildError:
        os._exit(0)
    assert not is_locked(file)


@posix
def test_a_child_forked_inside_a_lock_does_not_keep_it(file):
    go_on, told = os.pipe()
    with LocalStore(file).lock(""):
        child = multiprocessing.get_context("fork").Process(target=os.read, args=(go_on, 1))
        child.start()
        locked = is_locked(file)
    deadline = time.monotonic() + 30
    while (locked_afterwards := is_locked(file)) and time.monotonic() < deadline:
        pass  # the child lets go as its first step
    os.write(told, b"x")
    child.join(30)
    os.close(go_on)
    os.close(told)
    assert (locked, locked_afterwards) == (True, False)


STOCK = """
import sys
import blosc2
print("imported", flush=True)
array = blosc2.open(sys.argv[1], mode="a", locking=True)
array[0:3] = 7
"""


@posix
@pytest.mark.parametrize("contiguous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_c_library_waits_for_our_lock_and_shares_its_counter(tmp_path, contiguous):
    blosc2 = pytest.importorskip("blosc2")
    import numpy as np

    path = tmp_path / "array.b2nd"
    blosc2.asarray(np.arange(1000), urlpath=str(path), contiguous=contiguous, mode="w")
    sidecar = tmp_path / "array.b2nd.b2lock" if contiguous else path / ".b2lock"
    store = LocalStore(path)
    name = "" if contiguous else "chunks.b2frame"
    with store.lock(name):
        pass
    assert counter(sidecar) == 1
    with subprocess.Popen([sys.executable, "-c", STOCK, str(path)], stdout=subprocess.PIPE) as process:
        with store.lock(name):
            assert process.stdout.readline().strip() == b"imported"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            assert counter(sidecar) == 2
        assert process.wait(60) == 0
    assert counter(sidecar) > 2
    assert blosc2.open(str(path), mode="r")[0:4].tolist() == [7, 7, 7, 3]


def test_a_listing_leaves_out_a_file_that_is_removed_meanwhile(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_bytes(b"12")
    scandir = os.scandir

    @contextmanager
    def scan(path):
        with scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        assert [entry.is_file() for entry in found] == [True] * 3
        (tmp_path / "b").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", scan)
    assert {name: each.size for name, each in LocalStore(tmp_path).listing().items()} == {"a": 2, "c": 2}


def test_a_directory_that_a_file_has_replaced_has_no_parts_to_remove(tmp_path):
    (tmp_path / "frame").write_bytes(b"a file by now")
    staged = LocalStore(tmp_path / "frame" / "chunks.b2frame.0.b2tmp", within=tmp_path)
    staged.remove("chunks.b2frame", lambda _: True, locked=True)
    staged.drop_lock()
    assert (tmp_path / "frame").read_bytes() == b"a file by now"


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="needs names that swap")
def test_a_directory_that_a_file_replaces_while_it_is_listed_is_listed_as_the_file(tmp_path, monkeypatch):
    (tmp_path / "frame").mkdir()
    (tmp_path / "new").write_bytes(b"1234")
    scandir = os.scandir

    def late(path):
        monkeypatch.undo()
        assert LocalStore(tmp_path / "new").exchange(LocalStore(tmp_path / "frame"), at_once=True)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert {name: each.size for name, each in LocalStore(tmp_path / "frame").listing().items()} == {"": 4}


def test_a_directory_with_the_number_of_a_file_that_is_gone_is_a_conflict(tmp_path):
    (tmp_path / "frame").mkdir()
    store = LocalStore(tmp_path / "frame")
    expected = Version(store.stamp("").version.tag, "1:9", b"1234", 4)
    with pytest.raises(ConflictError, match="refresh"):
        store.read([Span("", 0, 4)], expected=expected)
