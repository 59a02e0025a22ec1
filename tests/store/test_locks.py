"""The lock files of local frames: what is taken for one, whose lock it is, and what happens when it is removed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import b2array
from b2array.errors import FormatError
from b2array.store.local_store import LocalStore
from b2array.store.memory import MemoryStore

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs fork, signals and links")

INDEX = "chunks.b2frame"
LONG = 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.b2nd"
    path.write_bytes(b"frame")
    return path


def take(store: LocalStore, name: str = "", *, shared: bool = False) -> None:
    with store.lock(name, shared=shared):
        pass


# ---- which files are lock files ----


@posix
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_stays(tmp_path, file, dangling, shared):
    victim = tmp_path / "victim"
    if not dangling:
        victim.write_bytes(b"ssh-ed25519 AAAA")
    (tmp_path / "a.b2nd.b2lock").symlink_to("victim")
    with pytest.raises(FormatError, match=r"a\.b2nd\.b2lock: expected .* symbolic link"):
        take(LocalStore(file), shared=shared)
    assert dangling != victim.exists()
    assert dangling or victim.read_bytes() == b"ssh-ed25519 AAAA"


@posix
def test_a_lock_with_another_name_is_refused(tmp_path, file):
    (tmp_path / "victim").write_bytes(b"")
    (tmp_path / "a.b2nd.b2lock").hardlink_to(tmp_path / "victim")
    with pytest.raises(FormatError, match=r"a\.b2nd\.b2lock: expected a lock file .* 2 hard links"):
        take(LocalStore(file))
    assert (tmp_path / "victim").read_bytes() == b""


@posix
def test_a_named_pipe_is_no_lock(tmp_path, file):
    os.mkfifo(tmp_path / "a.b2nd.b2lock")
    for shared in (False, True):
        with pytest.raises(FormatError, match=r"a\.b2nd\.b2lock: expected a lock file"):
            take(LocalStore(file), shared=shared)


@pytest.mark.parametrize("content", [b"my shopping list", bytes(17), b"\0" * 15 + b"\1\1"])
def test_a_file_with_other_content_is_no_lock_and_stays(tmp_path, file, content):
    (tmp_path / "a.b2nd.b2lock").write_bytes(content)
    for _ in range(2):
        with pytest.raises(FormatError, match=r"a\.b2nd\.b2lock: expected the counter"):
            take(LocalStore(file))
    assert (tmp_path / "a.b2nd.b2lock").read_bytes() == content


@pytest.mark.parametrize("content", [b"", bytes(8), bytes(8) + b"\xff" * 8])
def test_an_empty_file_and_any_counter_are_locks(tmp_path, file, content):
    (tmp_path / "a.b2nd.b2lock").write_bytes(content)
    take(LocalStore(file))
    counter = (int.from_bytes(content[8:], "little") + 1) % 2**64
    assert (tmp_path / "a.b2nd.b2lock").read_bytes() == bytes(8) + counter.to_bytes(8, "little")


# ---- one thread does not wait for itself ----


def test_a_thread_that_holds_a_lock_gets_an_error_and_can_go_on(file):
    store, other = LocalStore(file), LocalStore(file)
    for _ in range(2):
        with store.lock(""):
            for again in (store, other):
                with pytest.raises(RuntimeError, match=r"a\.b2nd\.b2lock: this thread holds the lock already"):
                    take(again)
            with pytest.raises(RuntimeError):
                take(other, shared=True)
    with store.lock("", shared=True):
        take(other, shared=True)
        with pytest.raises(RuntimeError):
            take(other)
    take(other)


def test_a_thread_that_holds_a_lock_in_memory_gets_an_error_and_others_wait():
    store, taken = MemoryStore({"": b"x"}), threading.Event()
    other = threading.Thread(target=lambda: (take(store), taken.set()))
    with store.lock(""):
        with pytest.raises(RuntimeError, match="memory: this thread holds the lock already"):
            store.lock("")
        other.start()
        assert not taken.wait(0.2)
    other.join(LONG)
    assert taken.is_set()
    take(store)


@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_write_through_another_handle_inside_a_lock_is_an_error(tmp_path, layout):
    a = b2array.zeros(10, url=tmp_path / "a.b2nd", layout=layout)
    b = b2array.open(tmp_path / "a.b2nd", "r+")
    with a.lock():
        a[0] = 1
        with pytest.raises(RuntimeError, match="holds the lock already"):
            b[1] = 2
    b[1] = 2
    assert b[:2].tolist() == [1, 2]


@posix
@pytest.mark.parametrize("place", ["contiguous", "sparse", "memory"])
def test_a_signal_handler_that_writes_inside_a_write_never_hangs(tmp_path, place):
    where = {} if place == "memory" else {"url": tmp_path / "a.b2nd", "layout": place}
    a = b2array.zeros((20, 10), chunks=(5, 10), **where)
    outcomes: set[type | None] = set()
    busy, calls = False, 0

    def write(*_: object) -> None:
        nonlocal busy
        if busy:  # not inside of itself
            return
        busy, outcome = True, None
        try:
            a[7] = 7
        except (RuntimeError, BufferError) as error:
            outcome = type(error)
        outcomes.add(outcome)
        busy = False

    def interrupt(_frame: object, event: str, _value: object) -> None:
        # By the count of calls, not by a timer: however fast the disk is, signals come at all places of a write.
        nonlocal calls
        if event == "call" and not busy:
            calls += 1
            # Each write adds a file, and lists of files take more calls: without a limit, no list would end.
            if calls % 53 == 0 and calls < 20_000:
                signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, write)
    sys.setprofile(interrupt)
    try:
        for number in range(10):
            a[number % 5] = number
            with suppress(b2array.errors.ConflictError), a.transaction():
                a[number % 5] = number
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, before)
    assert RuntimeError in outcomes
    a[8] = 8
    assert (a[8] == 8).all()
    if place != "memory":
        assert b2array.verify(tmp_path / "a.b2nd", deep=True).ok


@posix
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_signal_handler_that_writes_into_a_transaction_damages_no_chunk(tmp_path, layout):
    moment, outcomes = 0, set()

    def write(*_: object) -> None:
        try:
            a[7] = 7
        except (RuntimeError, b2array.errors.ConflictError) as error:
            outcomes.add(type(error))
        else:
            outcomes.add(None)

    def interrupt(_frame: object, event: str, _value: object) -> None:
        nonlocal calls
        calls += event == "call"
        if event == "call" and calls == moment:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, write)
    try:
        while True:
            url, calls = tmp_path / f"{moment}.b2nd", 0
            a = b2array.zeros((10, 10), chunks=(5, 10), url=url, layout=layout)
            with suppress(b2array.errors.ConflictError), a.transaction():
                a[6] = 6
                sys.setprofile(interrupt)
                a[0] = 1
                a[5] = 5
            sys.setprofile(None)
            if calls < moment:
                break
            assert b2array.verify(url, deep=True).ok
            rows = [int(row[0]) for row in b2array.open(url)]
            assert (rows[0], rows[5], rows[6], rows[7]) in [(1, 5, 6, 0), (1, 5, 6, 7), (0, 0, 0, 7)]
            moment += 11
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, before)
    assert outcomes == {None, b2array.errors.ConflictError}


# ---- locks that are removed ----


@posix
@pytest.mark.parametrize("name", ["", INDEX])
def test_who_waited_for_a_lock_that_was_removed_waits_for_the_new_one(tmp_path, name):
    path = tmp_path / "a.b2nd"
    if name:
        path.mkdir()
    lock = path / ".b2lock" if name else tmp_path / "a.b2nd.b2lock"
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with LocalStore(path).lock(name):
            inside.set()
            leave.wait(LONG)

    taken = threading.Event()
    waiting = threading.Thread(target=lambda: (take(LocalStore(path), name), taken.set()))
    newcomer = threading.Thread(target=hold)
    with LocalStore(path).lock(name):
        waiting.start()
        assert not taken.wait(0.2)
        lock.unlink()
        newcomer.start()  # takes the lock of a new file
        assert inside.wait(LONG)
    assert not taken.wait(0.3)
    leave.set()
    for thread in (newcomer, waiting):
        thread.join(LONG)
    assert taken.is_set()


def _enter_again_and_again(path: str, name: str, marker: str, seconds: float, violations: list[int]) -> None:
    store, until = LocalStore(path), time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(FileNotFoundError, NotADirectoryError), store.lock(name):
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                violations.append(1)
                continue
            time.sleep(0.0005)
            Path(marker).unlink()


@posix
@pytest.mark.parametrize("name", ["", INDEX])
def test_removing_and_making_a_frame_again_lets_no_two_writers_in(tmp_path, name):
    path, marker = str(tmp_path / "a.b2nd"), str(tmp_path / "inside")
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        violations = manager.list()
        args = (path, name, marker, 0.5, violations)
        processes = [context.Process(target=_enter_again_and_again, args=args) for _ in range(4)]
        for process in processes:
            process.start()
        rounds, store = 0, LocalStore(path, within=tmp_path)
        while any(process.is_alive() for process in processes):
            with suppress(FileExistsError):
                store.create(name, b"frame")
            store.remove(INDEX, lambda _: True)
            rounds += 1
        for process in processes:
            process.join(LONG)
        assert not list(violations)
        assert rounds > 5


@posix
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_deleting_a_member_waits_for_its_writers(tmp_path, layout):
    group = b2array.open_group(tmp_path / "g.b2d", "w")
    a = group.create("a", data=np.zeros(10), layout=layout)
    done = threading.Event()
    deleting = threading.Thread(target=lambda: (group.__delitem__("a"), done.set()))
    with a.lock():
        deleting.start()
        assert not done.wait(0.3)
        a[0] = 1
    deleting.join(LONG)
    assert done.is_set()
    assert not [path for path in (tmp_path / "g.b2d").iterdir() if path.name.startswith("a")]


# ---- locks and forks ----


@posix
@pytest.mark.parametrize("take_lock", ["lock", "lock_if_free"])
def test_a_fork_beside_a_thread_that_takes_a_lock_leaves_no_copy_of_it(file, monkeypatch, take_lock):
    """Otherwise the lock stays held as long as the child has its copy: both wait for ever."""
    opened, forked = threading.Event(), threading.Event()
    original = os.fstat

    def fstat(fd: int) -> os.stat_result:
        if threading.current_thread() is writer and not forked.is_set():
            opened.set()
            forked.wait(LONG)
        return original(fd)

    def write() -> None:
        store = LocalStore(file)
        if take_lock == "lock":
            take(store)
        else:
            store.lock_if_free().close()

    writer = threading.Thread(target=write)
    monkeypatch.setattr(os, "fstat", fstat)
    writer.start()
    assert opened.wait(LONG)
    leave, report = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(leave[0], 1)  # it lives as long as the test wants
        signal.alarm(LONG)
        take(LocalStore(file))
        os.write(report[1], b"x")
        os._exit(0)
    forked.set()
    writer.join(LONG)
    deadline, free = time.monotonic() + 5, None
    while free is None and time.monotonic() < deadline:  # the child closes its copy first of all
        free = LocalStore(file).lock_if_free()
    if free is not None:
        free.close()
    os.write(leave[1], b"x")
    assert os.read(report[0], 1) == b"x"
    os.waitpid(child, 0)
    for fd in (*leave, *report):
        os.close(fd)
    assert free is not None


# ---- whose lock files may be written ----


@posix
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_whoever_may_write_to_an_array_may_write_to_its_lock_file(tmp_path, layout):
    url = tmp_path / "a.b2nd"
    lock = url / ".b2lock" if layout == "sparse" else tmp_path / "a.b2nd.b2lock"
    before = os.umask(0o022)
    try:
        a = b2array.zeros(10, url=url, layout=layout)
        a[0] = 1
        assert lock.stat().st_mode & 0o777 == 0o644
        url.chmod(0o775 if layout == "sparse" else 0o664)
        a[0] = 2
        assert lock.stat().st_mode & 0o777 == 0o664
        url.chmod(0o700 if layout == "sparse" else 0o600)
        a[0] = 3
        assert lock.stat().st_mode & 0o777 == 0o664  # somebody may have chosen that
    finally:
        os.umask(before)


def other_group() -> int:
    """Return a group to which this process may give files."""
    if os.geteuid() == 0:
        return os.getegid() + 1234
    others = [each for each in os.getgroups() if each != os.getegid()]
    return others[0] if others else pytest.skip("this user has one group only")


@posix
@pytest.mark.parametrize("layout", ["contiguous", "sparse"])
def test_a_lock_file_and_what_replaces_a_file_get_the_group_of_the_array(tmp_path, layout):
    group, url = other_group(), tmp_path / "a.b2nd"
    a = b2array.zeros((10, 10), url=url, layout=layout, chunks=(1, 10))
    frame = url / INDEX if layout == "sparse" else url
    for path in {url, frame}:
        os.chown(path, -1, group)
        path.chmod(0o775 if path.is_dir() else 0o664)
    a[0] = 1
    b2array.repack(url)  # a rewrite
    b2array.asarray(np.ones(5), url=url, overwrite=True, layout=layout)
    lock = url / ".b2lock" if layout == "sparse" else tmp_path / "a.b2nd.b2lock"
    for path in (frame, url, lock):
        assert (path.stat().st_gid, path.stat().st_mode & 0o060) == (group, 0o060), path


@posix
@pytest.mark.parametrize(("old", "new"), [("contiguous", "sparse"), ("sparse", "contiguous")])
def test_an_array_that_is_replaced_by_one_of_the_other_layout_keeps_who_may_use_it(tmp_path, old, new):
    group, url = other_group(), tmp_path / "a.b2nd"
    b2array.zeros(10, url=url, layout=old)
    os.chown(url, -1, group)
    url.chmod(0o770 if old == "sparse" else 0o660)
    b2array.zeros(10, url=url, layout=new, overwrite=True)
    assert (url.stat().st_gid, url.stat().st_mode & 0o777) == (group, 0o770 if new == "sparse" else 0o660)


# ---- file systems without locks ----


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    import fcntl

    def flock(fd: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    return request.param


def change_everything(directory: Path, layout: str) -> None:
    """Write in each way that takes a lock, and compare with NumPy."""
    url, x = directory / "a.b2nd", np.zeros((6, 4))
    array = b2array.open(url, "r+")
    array[1:3] = x[1:3] = 5
    array.append(np.ones((2, 4)))
    array.snapshot("s")
    array.attrs["unit"] = "m"
    np.testing.assert_array_equal(b2array.open(url)[...], np.concatenate([x, np.ones((2, 4))]))
    group = b2array.open_group(directory / "g.b2d", "a")
    with group.transaction() as changes:
        changes["x"] = x
        changes["y"] = x + 1
    group["x"][0] = 7
    del group["y"]
    assert [*group] == ["x"]
    assert b2array.open(directory / "g.b2d" / "x.b2nd")[0].tolist() == [7] * 4
    b2array.asarray(x, url=url, overwrite=True, layout=layout)
    np.testing.assert_array_equal(b2array.open(url)[...], x)


@posix
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_file_system_without_locks_is_an_error_that_names_the_frame_and_the_setting(tmp_path, without_locks, layout):
    url = tmp_path / "a.b2nd"
    array = b2array.zeros((6, 4), url=url, chunks=(2, 4), layout=layout)
    for write in (
        lambda: array.__setitem__(0, 1),
        lambda: array.append(np.ones((1, 4))),
        lambda: array.attrs.__setitem__("x", 1),
        lambda: b2array.open_group(tmp_path / "g.b2d", "a").__setitem__("x", [1]),
    ):
        with pytest.raises(
            OSError, match=r"has no locks.*b2array\.config\.locks = 'off'.*/(a\.b2nd|g\.b2d)'$"
        ) as caught:
            write()
        assert caught.value.errno == without_locks
    assert not b2array.open(url)[...].any()
    assert b2array.open(url).shape == (6, 4)


@posix
@pytest.mark.parametrize("layout", ["sparse", "contiguous"])
def test_a_file_system_without_locks_can_be_written_if_locks_are_off(tmp_path, without_locks, layout):
    b2array.zeros((6, 4), url=tmp_path / "a.b2nd", chunks=(2, 4), layout=layout)
    with b2array.config.using(locks="off"):
        change_everything(tmp_path, layout)


@posix
def test_locks_that_are_off_wait_for_nobody(file):
    with LocalStore(file).lock(""):
        seen = []

        def write() -> None:
            with b2array.config.using(locks="off"):
                take(LocalStore(file))
            seen.append("wrote")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(LONG)
        assert seen == ["wrote"]
