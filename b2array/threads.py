"""The threads that decode and encode.

A call from the main thread of a program uses `config.threads` threads. Any other call does its work in the thread that
made it, because its caller already runs several at a time: in threads that the program started, such as those of dask's
threaded scheduler and of distributed's workers, and in processes that multiprocessing started, such as those of dask's
process scheduler.

C-Blosc must not start threads of its own: `alone` is the only way to call it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from multiprocessing import parent_process
from typing import Any, TypeVar

from numcodecs import blosc

from b2array import config

__all__ = ["ahead", "alone", "each", "spread", "width"]

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()
_lock = threading.Lock()
_turn = threading.RLock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


class _Here(threading.local):
    in_pool = False
    """Whether this thread may hold a lock that threads of a pool wait for."""


_here = _Here()


def width() -> int:
    """Return how many threads work for a call from this one."""
    main = threading.main_thread()
    if threading.current_thread() is not main or parent_process() is not None:
        return 1
    # A call that interrupts `_in_pool` would wait for ever. When the interpreter ends, no thread can start.
    if _here.in_pool or not main.is_alive():
        return 1
    return max(1, config.threads)


def alone(call: Callable[..., R], /, *args: object) -> R:
    """Call a function of `numcodecs.blosc` so that C-Blosc works in this thread, with the given arguments.

    On the main thread, and everywhere if the program has set `use_threads` to True, numcodecs lets C-Blosc spread the
    blocks over threads of its own, a second pool. If one of these threads cannot start, later calls count them wrong:
    C-Blosc returns wrong bytes or waits for ever. There, environment variables also override the arguments.
    """
    wish = blosc.use_threads
    if wish is None and threading.current_thread() is threading.main_thread():
        # Other threads may see this False, which means the same to them as None.
        try:
            blosc.use_threads = False
            return call(*args)
        finally:
            blosc.use_threads = None
    if wish is None or wish is False:
        return call(*args)
    # True, or the 0 below. One call at a time, as in the pool of C-Blosc. Numcodecs takes 0 for False, but it tells the
    # other threads that True will come back.
    with _turn:
        wish = blosc.use_threads
        try:
            blosc.use_threads = 0
            return call(*args)
        finally:
            blosc.use_threads = wish


def spread(task: Callable[[T], R], items: Iterable[T], *, ahead: int = 2) -> Iterator[R]:
    """Yield ``task(item)`` for each item, in order. Each worker computes at most `ahead` items ahead.

    Items are consumed as the work proceeds, always in the calling thread.
    """
    nworkers, source = width(), iter(items)
    first = list(islice(source, 2)) if nworkers > 1 else []
    if len(first) < 2:
        yield from map(task, chain(first, source))
        return
    yield from _in_order(_in_pool(_executor, nworkers), task, chain(first, source), nworkers * ahead)


def _in_pool(call: Callable[..., R], *args: object) -> R:
    """Call a function that holds a lock that threads of a pool wait for."""
    _here.in_pool = True
    try:
        return call(*args)
    finally:
        _here.in_pool = False


def _in_order(pool: ThreadPoolExecutor, task: Callable[[T], R], source: Iterator[T], count: int) -> Iterator[R]:
    """Yield results in the order of the items, with `count` calls running or finished ahead of the caller."""
    under_way: deque[Future[R]] = deque()
    try:
        under_way.extend(_in_pool(pool.submit, task, item) for item in islice(source, count))
        while under_way:
            result = under_way[0].result()  # one that is interrupted here is still waited for below
            under_way.popleft()
            under_way.extend(_in_pool(pool.submit, task, item) for item in islice(source, 1))
            yield result
            del result  # it may be large
    finally:
        _ended(under_way)


def _ended(under_way: Iterable[Future[R]]) -> list[Future[R]]:
    """Cancel the calls that have not begun, wait for the others, and return those."""
    begun = [future for future in under_way if not future.cancel()]
    wait(begun)
    return begun


def each(task: Callable[[T], object], items: Iterable[T]) -> None:
    """Call ``task(item)`` for each item, in any order and without results: cheaper than `spread` for small items.

    Items are consumed as the work proceeds, one at a time, possibly in another thread. After an error no call begins.
    """
    nworkers = width()
    source = iter(items)
    if nworkers == 1:
        for item in source:
            task(item)
        return
    taking = threading.Lock()
    stopped = False

    def take() -> T:
        with taking:
            return next(source, _END)

    def work() -> None:
        nonlocal stopped
        try:
            while not stopped:
                item = _in_pool(take)
                if item is _END:
                    return
                task(item)
        except BaseException:
            stopped = True
            raise

    # This thread works too: one thread less to wake, and to find a processor for.
    pool = _in_pool(_executor, nworkers)
    under_way = [_in_pool(pool.submit, work) for _ in range(nworkers - 1)]
    try:
        work()
    finally:
        stopped = True
        # Calls that have not begun, because all threads are busy, have nothing left to do.
        begun = _ended(under_way)
    for future in begun:
        future.result()


def ahead(task: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    """Yield ``task(item)`` for each item, in order, with `count` calls running in threads of their own.

    For calls that wait rather than compute, such as requests. The threads end with the last result, or when the
    iterator is closed. Items are consumed as the work proceeds, always in the calling thread.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if len(first) < 2 or count < 2 or _here.in_pool:
        yield from map(task, chain(first, source))
        return
    with ThreadPoolExecutor(count, thread_name_prefix="b2array-ahead") as pool:
        yield from _in_order(pool, task, chain(first, source), count)


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _lock:
        if _pool is None or _pool_size != size:
            # A generator of `spread` may still use the earlier pool, whose threads end with it.
            _pool = ThreadPoolExecutor(size, thread_name_prefix="b2array")
            _pool_size = size
        return _pool


def _after_fork() -> None:
    global _pool, _lock, _turn
    _pool = None
    _lock = threading.Lock()
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
