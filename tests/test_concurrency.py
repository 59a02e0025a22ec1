"""Processes and threads that write to one array at the same time lose nothing, and readers never see a half commit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import blosc2
import clouds
import numpy as np
import pytest
import writers

import b2array
from b2array import config
from b2array import threads as workers
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle
from b2array.errors import ConflictError

LAYOUTS = pytest.mark.parametrize("layout", ["contiguous", "sparse"])
LONG = 50
"""Where the option --torture asks for more, object stores are shared by as many processes as files."""
forks = pytest.mark.skipif(sys.platform == "win32", reason="processes are not forked there")


@pytest.fixture(scope="module")
def together():
    """Run calls in processes of their own, at the same time, and return what they return."""
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:

        def run(*calls):
            return [future.result(60) for future in [pool.submit(*call) for call in calls]]

        yield run


def child(verb):
    """Call `verb` in a forked process, which must end within ten seconds; return its exit code."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            verb()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@pytest.mark.parametrize(("layout", "chunks"), [("contiguous", (2, 50)), ("sparse", (2, 50)), ("sparse", (8, 100))])
def test_processes_that_write_different_parts_lose_nothing(together, tmp_path, layout, chunks):
    url = tmp_path / "a.b2nd"
    b2array.zeros((8, 100), "i4", url=url, chunks=chunks, blocks=(1, 50), layout=layout)
    together(*((writers.fill_rows, url, [n, n + 4]) for n in range(4)))
    expected = np.broadcast_to(np.arange(1, 9)[:, None], (8, 100))
    np.testing.assert_array_equal(b2array.open(url)[...], expected)
    np.testing.assert_array_equal(blosc2.open(str(url))[...], expected)


@LAYOUTS
def test_transactions_that_conflict_are_repeated_and_none_counts_twice(together, tmp_path, layout):
    url = tmp_path / "a.b2nd"
    b2array.zeros(3, "i4", url=url, layout=layout)
    together(*((writers.raise_counters, url, n) for n in range(3)))
    assert b2array.open(url)[...].tolist() == [writers.ROUNDS] * 3


@LAYOUTS
def test_processes_that_append_or_set_attributes_lose_nothing(together, tmp_path, layout):
    url = tmp_path / "a.b2frame"
    b2array.create_schunk(url, chunksize=8, typesize=4, layout=layout)
    array = tmp_path / "b.b2nd"
    b2array.zeros(9, url=array, layout=layout)
    together(
        (writers.append_chunks, url, 0),
        (writers.append_chunks, url, 1),
        (writers.set_attributes, array, 0),
        (writers.set_attributes, array, 1),
    )
    held = b2array.open_schunk(url)
    found = [tuple(np.frombuffer(held.decompress_chunk(n), "i4")) for n in range(held.nchunks)]
    for me in range(2):
        assert [n for who, n in found if who == me] == list(range(writers.ROUNDS))
    assert dict(b2array.open(array).attrs) == {f"{me}.{n}": n for me in range(2) for n in range(4)}


@LAYOUTS
def test_processes_that_change_different_things_of_one_array_are_never_refused(together, tmp_path, layout):
    url = tmp_path / "a.b2nd"
    b2array.zeros((8, 10), "i4", url=url, chunks=(4, 10), blocks=(2, 10), layout=layout)
    verbs = [writers.append_rows, writers.assign_rows, writers.assign_rows, writers.note_together] * 2
    together(*((verb, url, me) for me, verb in enumerate(verbs)))
    found = b2array.open(url)
    items, last = found[...], writers.ROUNDS - 1
    appended = items[8:, 9]
    assert sorted(appended.tolist()) == [0] * 3 * writers.ROUNDS + [4] * 3 * writers.ROUNDS
    assert [items[me, 9] for me in (1, 2, 5, 6)] == [100 + last] * 4
    noted = dict(found.attrs)
    assert noted.pop("last") in (3, 7)
    assert noted == {f"{me}.{which}": last for me in (3, 7) for which in ("first", "second")}


@forks
@pytest.mark.filterwarnings("ignore:.*is rewritten with every change")
@LAYOUTS
@pytest.mark.slow
def test_sixteen_processes_write_append_resize_and_read_one_array(tmp_path, layout, cloud_of, torture):
    shared_by_sixteen(str(tmp_path / "a.b2nd"), layout, {}, max(1, torture // 8))
    for kind in clouds.KINDS if torture > LONG else ():
        cloud = cloud_of(kind)
        bucket = cloud.make_bucket(f"sixteen-{layout}-{kind}".replace(" ", "-"))
        shared_by_sixteen(f"{bucket}/a.b2nd", layout, cloud.options, torture // 50)


def shared_by_sixteen(url, layout, options, rounds):
    """Let processes work on one array, each with that many commits; then look for all that they did."""
    b2array.zeros((writers.ROWS, 16), "i8", url=url, chunks=(4, 8), layout=layout, storage_options=options)
    with ProcessPoolExecutor(16, mp_context=multiprocessing.get_context("fork")) as pool:
        left = [pool.submit(writers.crowd, url, me, rounds, options) for me in range(16)]
        count = sum(future.result() for future in left)
    found = b2array.open(url, storage_options=options)
    rest = writers.check_crowd(found)
    assert len(rest) == count
    assert found[0, :4].tolist() == [rounds] * 4
    appended = rest[rest[:, 0] > 0]
    assert len(appended) == 4 * sum(1 + n % 2 for n in range(1, rounds + 1))
    assert b2array.verify(url, deep=True, storage_options=options).ok


@LAYOUTS
def test_readers_see_whole_commits_in_order(together, tmp_path, layout):
    url = tmp_path / "a.b2nd"
    b2array.zeros(400, "i4", url=url, chunks=100, blocks=100, layout=layout)
    *seen, _ = together((writers.watch, url), (writers.watch, url), (writers.step_together, url, writers.ROUNDS * 4))
    assert seen == [writers.ROUNDS * 4] * 2


def test_an_array_that_is_replaced_under_its_writers_stays_whole(together, tmp_path):
    url = tmp_path / "a.b2nd"
    writers.replace(url, 1)
    together((writers.replace, url, 40), (writers.touch, url, 40), (writers.touch, url, 40))
    items = b2array.open(url)[...]
    assert items.tolist() == [40] * 400


@pytest.mark.costly
@LAYOUTS
def test_threads_that_share_a_handle_read_while_others_write(tmp_path, layout):
    array = b2array.zeros(4000, "i8", url=tmp_path / "a.b2nd", chunks=1000, blocks=500, layout=layout)
    noise = np.random.default_rng(0).integers(1, 2**40, 4000)
    stop = threading.Event()

    def read(_):
        count = 0
        while not stop.is_set() or not count:
            items = array[...] // noise
            assert items.min() == items.max()
            count += 1

    def write(_):
        # Old chunks soon make up more than half of the file, which is then rewritten.
        try:
            for n in range(1, 25):
                array[...] = noise * n
        finally:
            stop.set()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda verb: verb(0), [read, read, write]))
    assert (array[...] == noise * 24).all()


def test_threads_that_join_a_transaction_are_one_commit(tmp_path):
    array = b2array.zeros((8, 30), "i4", url=tmp_path / "a.b2nd", chunks=(4, 10), blocks=(2, 10))
    before = array.generation
    with array.transaction(), ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(array.__setitem__, n, n) for n in range(8)]:
            future.result()
        assert array.generation == before
        assert not b2array.open(tmp_path / "a.b2nd")[...].any()
    assert (b2array.open(tmp_path / "a.b2nd")[...] == np.arange(8)[:, None]).all()


def test_an_empty_transaction_does_not_take_the_handle_back():
    array = b2array.zeros(8, "i4", chunks=4, blocks=4)
    entered, written = threading.Event(), threading.Event()

    def assign():
        for attempt in array._handle.attempts():
            with attempt as draft:
                draft.set_attr("x", b"\x01")
                entered.set()
                assert written.wait(10)

    thread = threading.Thread(target=assign)
    thread.start()
    assert entered.wait(10)
    with array.transaction():
        written.set()
        thread.join(10)
        after = array.generation
    assert array.generation == after
    assert dict(array.attrs) == {"x": 1}


def test_many_writers_of_one_chunk_all_have_their_turn():
    # With a single attempt each, most of them would come second.
    array = b2array.zeros((16, 50), "i4", chunks=(16, 50), blocks=(4, 50))
    handles = [b2array.NDArray(Handle(array._handle.revision, "r+")) for _ in range(4)]

    def fill(number):
        for row in range(number, 16, 4):
            handles[number][row] = row

    with config.using(retries=1), ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(4)))
    array.refresh()
    assert (array[...] == np.arange(16)[:, None]).all()


def test_a_writer_in_the_main_thread_that_makes_others_wait_can_still_read():
    # It encodes in its workers, which read the old chunks from the store that it has locked.
    array = b2array.asarray(np.arange(400), chunks=100, blocks=50)
    with config.using(retries=0, threads=2):
        array[10:390] = 1
    assert array[...].sum() == 380 + sum(range(10)) + sum(range(390, 400))


@forks
@LAYOUTS
def test_a_forked_child_reads_and_writes_through_the_parents_handle(tmp_path, layout):
    array = b2array.zeros((40, 1000), "i4", url=tmp_path / "a.b2nd", chunks=(10, 1000), blocks=(5, 1000), layout=layout)
    array[::2] = 1
    assert array[...].sum() == 20_000
    assert workers._pool is not None

    def work():
        assert array[...].sum() == 20_000
        array[1::2] = 2
        assert array[...].sum() == 60_000

    assert child(work) == 0
    array[0] = 0
    assert array[...].sum() == 59_000


@forks
@pytest.mark.slow
def test_a_fork_at_any_moment_of_other_threads_leaves_a_child_that_works(tmp_path):
    array = b2array.zeros((40, 1000), "i4", url=tmp_path / "a.b2nd", chunks=(10, 1000), blocks=(5, 1000))
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            array[3] = array[4] + 1

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        other = b2array.open(tmp_path / "a.b2nd")
        codes = [child(lambda: other.refresh() or other[3:5]) for _ in range(15)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 15


@pytest.mark.costly
@forks
@LAYOUTS
def test_a_transaction_belongs_to_the_process_that_began_it(tmp_path, layout):
    array = b2array.zeros(40, "i4", url=tmp_path / "a.b2nd", chunks=10, blocks=5, layout=layout)

    def leave():
        # As if the child went out of the block: neither the end nor an error may touch what the parent has put.
        with pytest.raises(ConflictError, match="forked"):
            array[0] = 9
        draft = array._handle.source
        with pytest.raises(ConflictError, match="forked"):
            commit(draft)
        draft.abort()

    with array.transaction():
        array[:20] = 1
        assert child(leave) == 0
        array[20:] = 2
    assert b2array.open(tmp_path / "a.b2nd")[...].tolist() == [1] * 20 + [2] * 20
