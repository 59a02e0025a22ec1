"""Work is spread over threads in order, a bounded number of items ahead, and only from the main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs import blosc

from b2array import config
from b2array import threads as workers
from b2array.codec import encode
from b2array.codec.cparams import CParams


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with config.using(threads=2):
        yield


def in_thread(verb: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(verb()))
    thread.start()
    thread.join(30)
    return found[0]


def name_of(_: object = None) -> str:
    return threading.current_thread().name


def test_results_come_in_order() -> None:
    assert list(workers.spread(lambda n: n * n, range(200))) == [n * n for n in range(200)]
    assert list(workers.spread(str, [])) == []


def test_the_main_thread_leaves_the_work_on_a_sequence_to_others() -> None:
    assert all(name.startswith("b2array") for name in workers.spread(name_of, range(9)))
    assert workers.width() == 2


def uses_threads() -> bool:
    """Say whether C-Blosc would use threads of its own if it was called now."""
    return bool(blosc._get_use_threads())


def fail() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("wish", [None, True, False])
@pytest.mark.parametrize("call", [lambda verb: verb(), in_thread], ids=["main thread", "other thread"])
def test_c_blosc_has_no_threads_of_its_own(wish: bool | None, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blosc, "use_threads", wish)
    assert call(lambda: workers.alone(lambda: (name_of(), uses_threads())) == (name_of(), False))
    assert blosc.use_threads is wish
    # As from the handler of a signal.
    assert call(lambda: workers.alone(lambda: (workers.alone(uses_threads), uses_threads()))) == (False, False)
    assert blosc.use_threads is wish
    with pytest.raises(KeyboardInterrupt):
        workers.alone(fail)
    assert blosc.use_threads is wish


@pytest.mark.parametrize("wish", [None, True, False])
def test_c_blosc_has_no_threads_of_its_own_when_many_call_it(
    wish: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blosc, "use_threads", wish)

    def call_often() -> set[bool]:
        return {workers.alone(uses_threads) for _ in range(2000)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            others = [pool.submit(call_often) for _ in range(3)]
            assert call_often() == {False}
            assert [other.result() for other in others] == [{False}] * 3
    finally:
        sys.setswitchinterval(before)
    assert blosc.use_threads is wish


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs a list of the threads")
@pytest.mark.parametrize("wish", [None, True])
@pytest.mark.slow
def test_nothing_that_reads_or_writes_makes_c_blosc_start_threads(wish: bool | None, tmp_path: Path) -> None:
    script = f"""
import os, threading, time, numpy as np
from numcodecs import blosc
import b2array as b2

def count():
    return len(os.listdir("/proc/self/task")), threading.active_count()

blosc.use_threads, url = {wish}, {str(tmp_path)!r}
values = np.arange(200_000).reshape(400, 500)
def everything():
    for codec in ("lz4", "blosclz", "zlib", "zstd"):
        c = b2.compress(values, typesize=8, cparams=b2.CParams(codec))
        assert b2.decompress(c) == values.tobytes()
        with b2.asarray(values, url=f"{{url}}/{{codec}}.b2nd", chunks=(100, 100), blocks=(10, 50), overwrite=True) as a:
            a[3:7, 50:70] = 1
            a[...], a[1, 2], a[:, 5], a.vindex[[1, 2], [3, 4]]
        with b2.open_schunk(f"{{url}}/{{codec}}.b2nd", "r+") as s:
            s.update_chunk(0, b2.compress(s.decompress_chunk(0), typesize=8, cparams=b2.CParams(codec)))
        b2.verify(f"{{url}}/{{codec}}.b2nd", deep=True)
        b2.bloscpack.pack(values, f"{{url}}/{{codec}}.blp", cparams=b2.CParams(codec), overwrite=True)
        assert (b2.bloscpack.unpack(f"{{url}}/{{codec}}.blp") == values).all()

before, ours = count()
b2.config.threads = 1
everything()
worker = threading.Thread(target=everything)
worker.start()
worker.join()
until = time.monotonic() + 5  # the system may take a moment to forget a thread that has ended
while count()[0] > before and time.monotonic() < until:
    time.sleep(0.01)
after, ours_after = count()
assert blosc.use_threads is {wish}
print(after - before, ours_after - ours)
blosc.use_threads = None
blosc.set_nthreads(3)
blosc.decompress(blosc.compress(values, b"lz4", 5, 1, 4096))
print(count()[0] - after > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("0 0\nTrue\n", "")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the size of the process")
def test_where_only_one_more_thread_can_start_chunks_are_right_and_the_process_ends(tmp_path: Path) -> None:
    """C-Blosc's own pool would miscount its threads: calls get wrong bytes, and its end waits for ever."""
    path = tmp_path / "chunk"
    path.write_bytes(encode.encode(np.arange(40_000).tobytes(), typesize=8, blocksize=4096, cparams=CParams("lz4")))
    script = f"""
import resource, b2array, numpy as np
from pathlib import Path
from numcodecs import blosc
blosc.set_nthreads(2)
b2array.config.threads = 1
chunk, values = Path({str(path)!r}).read_bytes(), np.arange(40_000).tobytes()
pages = int(Path("/proc/self/statm").read_text().split()[0])
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 13 * 2**20, unlimited[1]))
print(b2array.decompress(chunk) == values)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
print(all(b2array.decompress(chunk) == values for _ in range(50)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_one_thread_is_the_calling_one() -> None:
    with config.using(threads=1):
        assert [*workers.spread(name_of, range(3))] == [name_of()] * 3
        found: list[str] = []
        workers.each(lambda _: found.append(name_of()), range(3))
        assert found == [name_of()] * 3


def test_other_threads_work_themselves() -> None:
    assert in_thread(lambda: set(workers.spread(name_of, range(9))) == {name_of()})
    assert in_thread(workers.width) == 1
    done: list[int] = []
    in_thread(lambda: workers.each(done.append, range(9)))
    assert done == list(range(9))


def in_process() -> tuple[int, set[str], set[str]]:
    with config.using(threads=3):
        names: list[str] = []
        workers.each(lambda _: names.append(name_of()), range(50))
        return workers.width(), {*workers.spread(name_of, range(50))}, set(names)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_of_multiprocessing_uses_one_thread(method: str) -> None:
    assert in_process()[0] == 3
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
        width, *used = pool.submit(in_process).result(60)
    assert (width, *map(len, used)) == (1, 1, 1)


def test_items_are_taken_a_bounded_number_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield n

    results = workers.spread(lambda n: n, items(), ahead=3)
    for n, _ in zip(range(20), results, strict=False):
        assert taken <= n + 1 + 2 * 3
    results.close()
    assert taken < 30


def test_an_error_comes_at_its_place() -> None:
    def verb(n: int) -> int:
        if n == 5:
            raise ValueError("five")
        return n

    found: list[int] = []
    with pytest.raises(ValueError, match="five"):
        found.extend(workers.spread(verb, range(50)))
    assert found == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        workers.each(verb, range(50))
    # The threads are there for the next.
    assert list(workers.spread(str, range(3))) == ["0", "1", "2"]


def test_after_an_error_nothing_more_is_begun() -> None:
    begun: list[int] = []

    def verb(n: int) -> None:
        begun.append(n)
        if n == 3:
            raise ValueError(n)

    with pytest.raises(ValueError, match="3"):
        workers.each(verb, range(100_000))
    count = len(begun)
    assert count < 100_000
    assert len(begun) == count


@pytest.mark.parametrize("before", [None, True, False])
def test_the_calling_thread_takes_part_in_each_without_threads_of_blosc(
    monkeypatch: pytest.MonkeyPatch, before: bool | None
) -> None:
    monkeypatch.setattr(blosc, "use_threads", before)
    threads, settings = set(), set()
    both = threading.Barrier(2, timeout=30)

    def verb(number: int) -> None:
        if number < 2:
            both.wait()  # so that one thread cannot do both
        threads.add(threading.current_thread())
        settings.add(workers.alone(uses_threads))
        if number == 9:
            raise KeyError

    with pytest.raises(KeyError):
        workers.each(verb, range(10))
    assert len(threads) == 2
    assert threading.main_thread() in threads
    assert settings == {False}
    assert blosc.use_threads is before


def test_each_does_everything_once() -> None:
    done: list[int] = []
    workers.each(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_each_does_not_wait_for_threads_that_are_busy_elsewhere() -> None:
    elsewhere, free = workers._Calls(workers._pool_of_size(2), threading.Event.wait), threading.Event()
    answers = [elsewhere.begin(free) for _ in range(2)]
    done: list[int] = []
    workers.each(done.append, range(9))
    free.set()
    assert [answer.get(timeout=10) for answer in answers] == [(True, None)] * 2
    assert done == list(range(9))


def test_the_number_of_threads_can_change() -> None:
    for threads in (1, 3, 2):
        with config.using(threads=threads):
            assert workers.width() == max(1, threads)
            assert list(workers.spread(str, range(5))) == list("01234")


def test_a_pool_is_replaced_while_it_is_at_work() -> None:
    results = workers.spread(lambda n: n, range(30))
    assert next(results) == 0
    with config.using(threads=5):
        assert list(workers.spread(lambda n: -n, range(4))) == [0, -1, -2, -3]
    assert list(results) == list(range(1, 30))


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    list(workers.spread(name_of, range(3)))
    child = os.fork()
    if not child:
        os._exit(0 if list(workers.spread(lambda n: n + 1, range(3))) == [1, 2, 3] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_calls_ahead_are_under_way_at_the_same_time_and_come_in_order() -> None:
    together = threading.Barrier(3, timeout=30)

    def wait_for_the_others(n: int) -> int:
        together.wait()
        return n

    assert list(workers.ahead(wait_for_the_others, range(9), 3)) == list(range(9))


def test_calls_ahead_are_bounded_and_leave_no_threads() -> None:
    taken = []

    def items() -> Iterator[int]:
        for n in range(10):
            taken.append(n)
            yield n

    before = set(threading.enumerate())
    results = workers.ahead(lambda n: n, items(), 3)
    assert next(results) == 0
    assert len(taken) == 4
    results.close()
    assert len(taken) == 4
    assert set(threading.enumerate()) <= before  # threads of other tests may end meanwhile


def test_an_error_ahead_comes_at_its_place_and_ends_the_others() -> None:
    def fail_at_two(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        return n

    before = threading.active_count()
    results = workers.ahead(fail_at_two, iter(range(10)), 4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
    assert threading.active_count() == before


@pytest.mark.parametrize(("items", "count"), [((), 3), ((1,), 3), ((1, 2, 3), 1)])
def test_what_cannot_overlap_needs_no_thread(items: tuple[int, ...], count: int) -> None:
    me = threading.get_ident()
    assert list(workers.ahead(lambda _: threading.get_ident() == me, items, count)) == [True] * len(items)


def test_when_the_interpreter_ends_one_thread_reads_and_writes(tmp_path: Path) -> None:
    script = f"""
import atexit, b2array, numpy as np
b2array.config.threads = 2
def finish():
    a = b2array.asarray(np.arange(1000), url={str(tmp_path / "a.b2nd")!r}, chunks=10, blocks=5)
    a[:] += 1
    print(a[:].sum())
atexit.register(finish)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("500500\n", "")


def test_a_call_that_interrupts_the_taking_of_an_item_makes_do_without_threads() -> None:
    found: list[Any] = []
    is_found = threading.Event()

    def items() -> Iterator[int]:
        for n in range(3):
            if threading.current_thread() is threading.main_thread():
                found.append(workers.width())
                is_found.set()
            yield n

    # The other thread waits with its first item, or it could take all of them.
    workers.each(lambda _: is_found.wait(20), items())
    assert set(found) == {1}
    assert workers.width() == 2


@pytest.fixture
def signals() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt even if this process was started to ignore it, as with nohup."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("signals")
def test_a_call_whose_result_nobody_awaits_any_more_has_ended() -> None:
    begun, ended = threading.Event(), []

    def slow(n: int) -> int:
        begun.set()
        time.sleep(0.3 if n == 0 else 0)
        ended.append(n)
        return n

    def interrupted() -> None:
        for _ in workers.spread(slow, range(4)):
            pass

    with config.using(threads=2):
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    assert 0 in ended


@pytest.mark.usefixtures("signals")
def test_calls_are_over_at_the_end_even_if_waiting_for_them_is_interrupted() -> None:
    free, ended = threading.Event(), []
    calls = workers._Calls(workers._pool_of_size(2), lambda n: (free.wait(10), ended.append(n)))
    for n in range(5):
        calls.begin(n)
    while len(calls._begun) < 2:
        time.sleep(0.001)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    threading.Timer(0.3, free.set).start()
    with pytest.raises(KeyboardInterrupt):
        calls.end()
    assert len(ended) == 2
