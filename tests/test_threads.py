"""Work is spread over threads in order, a bounded number of items ahead, and only from the main thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from numcodecs import blosc

from b2array import config
from b2array import threads as workers


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


def test_a_single_call_is_made_where_it_is_asked_for_without_threads_of_blosc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blosc, "use_threads", None)
    assert workers.run(lambda: (name_of(), blosc.use_threads)) == (name_of(), False)
    assert blosc.use_threads is None


def test_one_thread_is_the_calling_one() -> None:
    with config.using(threads=1):
        assert [*workers.spread(lambda _: (name_of(), blosc.use_threads), range(3))] == [(name_of(), False)] * 3
        found: list[str] = []
        workers.each(lambda _: found.append(name_of()), range(3))
        assert found == [name_of()] * 3


def test_other_threads_work_themselves() -> None:
    assert in_thread(lambda: workers.run(name_of) == name_of())
    assert in_thread(lambda: set(workers.spread(name_of, range(9))) == {name_of()})
    assert in_thread(workers.width) == 1
    done: list[int] = []
    in_thread(lambda: workers.each(done.append, range(9)))
    assert done == list(range(9))


def in_process() -> tuple[int, set[str], set[str]]:
    with config.using(threads=3):
        names: list[str] = []
        workers.each(lambda _: names.append(name_of()), range(50))
        return workers.width(), {*workers.spread(name_of, range(50)), workers.run(name_of)}, set(names)


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
        workers.run(verb, 5)
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
    assert workers.run(len, begun) == count


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
        settings.add(blosc.use_threads)
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
    pool, free = workers._executor(2), threading.Event()
    elsewhere = [pool.submit(free.wait, 10) for _ in range(2)]
    done: list[int] = []
    workers.each(done.append, range(9))
    free.set()
    assert all(future.result() for future in elsewhere)
    assert done == list(range(9))


def test_the_number_of_threads_can_change() -> None:
    for threads in (1, 3, 0):
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
    workers.run(name_of)
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

    before = threading.active_count()
    results = workers.ahead(lambda n: n, items(), 3)
    assert next(results) == 0
    assert len(taken) == 4
    results.close()
    assert len(taken) == 4
    assert threading.active_count() == before


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


def test_a_call_that_interrupts_the_work_of_a_pool_makes_do_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    submit = workers.ThreadPoolExecutor.submit

    def interrupted(*args: Any) -> Any:
        found.append(workers.width())
        found.append(list(workers.ahead(name_of, range(3), 2)) == [name_of()] * 3)
        return submit(*args)

    def items() -> Iterator[int]:
        for n in range(3):
            if threading.current_thread() is threading.main_thread():
                found.append(workers.width())
            yield n

    monkeypatch.setattr(workers.ThreadPoolExecutor, "submit", interrupted)
    assert list(workers.spread(lambda n: n, range(2))) == [0, 1]
    assert found == [1, True] * 2
    found.clear()
    workers.each(lambda n: n, items())
    assert found[:2] == [1, True]
    assert set(found) == {1}
    assert workers.width() == 2
