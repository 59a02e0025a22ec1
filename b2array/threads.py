"""The threads that decode and encode.

A call from the main thread of a program uses `config.threads` threads. Any other call does its work in the thread that
made it, because its caller already runs several at a time: in threads that the program started, such as the threads of
dask's threaded scheduler and of distributed's workers, and in processes that multiprocessing started, such as the
workers of dask's process scheduler.

C-Blosc must not start threads: `alone` is the only way to call it.

When the interpreter ends, it stops all threads but the main one, and then closes generators and drops objects, whose
clean-up may come here. No thread answers any more, and NumPy may crash. So nothing waits then, and nothing is read or
written: `make_ending_error` says so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from multiprocessing import parent_process
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from numcodecs import blosc

from b2array import config

__all__ = [
    "Answer",
    "ahead",
    "alone",
    "each",
    "is_ending",
    "is_worker",
    "make_ending_error",
    "result",
    "spread",
    "width",
]

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()
_turn = threading.RLock()


class _ThreadState(threading.local):
    taking = False
    """Whether this thread may hold the lock that other threads wait for in `each`."""


_here = _ThreadState()


def is_worker() -> bool:
    """Return whether the caller probably runs several calls at a time: in other threads, or in other processes."""
    return threading.current_thread() is not threading.main_thread() or parent_process() is not None


is_ending = sys.is_finalizing
"""Whether the interpreter is ending, so that no other thread runs any more."""


def make_ending_error() -> RuntimeError:
    """Return the error for a call while the interpreter is ending."""
    return RuntimeError(
        "the interpreter is ending, so b2array reads and writes nothing any more; end a block of `with` earlier, or"
        " register a function with atexit instead of __del__"
    )


def width() -> int:
    """Return the number of threads for a call from this thread."""
    # A call that interrupts `each` there would wait forever. While the interpreter exits, no thread can start.
    if is_worker() or _here.taking or not threading.main_thread().is_alive():
        return 1
    return max(1, config.threads)


def alone(call: Callable[..., R], /, *args: object) -> R:
    """Call a function of `numcodecs.blosc` so that C-Blosc works in this thread, with the given arguments.

    On the main thread, and everywhere if the program has set `use_threads` to True, numcodecs lets C-Blosc spread the
    blocks over a second pool of threads. If one of these threads cannot start, later calls miscount the threads, and
    C-Blosc returns wrong bytes or waits forever. In that mode, environment variables also override the arguments.
    """
    wish = blosc.use_threads
    if wish is None and threading.current_thread() is threading.main_thread():
        # Other threads may see this False, which has the same effect for them as None.
        try:
            blosc.use_threads = False
            return call(*args)
        finally:
            blosc.use_threads = None
    if wish is None or wish is False:
        return call(*args)
    # The value is True, or the 0 below. Run one call at a time, as in the pool of C-Blosc. Numcodecs treats 0 as False,
    # but 0 tells the other threads that True will be restored.
    with _turn:
        wish = blosc.use_threads
        try:
            blosc.use_threads = 0
            return call(*args)
        finally:
            blosc.use_threads = wish


def spread(task: Callable[[T], R], items: Iterable[T], *, ahead: int = 2) -> Generator[R]:
    """Yield ``task(item)`` for each item, in order. Each worker computes at most `ahead` items in advance.

    Items are consumed as the work proceeds, always in the calling thread.
    """
    nworkers = width()
    source = iter(items)
    # A single item is not worth passing to another thread.
    first = list(islice(source, 2)) if nworkers > 1 else []
    if len(first) < 2:
        yield from map(task, chain(first, source))
        return
    yield from _in_order(_pool_of_size(nworkers), task, chain(first, source), nworkers * ahead)


def each(task: Callable[[T], object], items: Iterable[T]) -> None:
    """Call ``task(item)`` for each item, in any order and without results: cheaper than `spread` for small items.

    Items are consumed as the work proceeds, one at a time, possibly in another thread. No call begins after an error.
    """
    nworkers = width()
    source = iter(items)
    if nworkers == 1:
        for item in source:
            task(item)
        return
    lock = threading.Lock()
    # Not an attribute of `others`, which refers to `work`: the cycle would keep the items until garbage collection.
    stopped = False

    def take() -> T:
        _here.taking = True
        try:
            with lock:
                return next(source, _END)
        finally:
            _here.taking = False

    def work(_: object = None) -> None:
        nonlocal stopped
        try:
            while not stopped and (item := take()) is not _END:
                task(item)
        except BaseException:
            stopped = True
            raise

    # This thread works too, so one thread fewer needs to be woken and scheduled.
    others = _Calls(_pool_of_size(nworkers), work)
    answers = []
    try:
        answers += [others.begin(None) for _ in range(nworkers - 1)]
        work()
    finally:
        stopped = True
        others.end()
    for answer in answers:
        # A worker that has not begun because all threads are busy has nothing left to do.
        if not answer.empty():
            result(answer)


def ahead(task: Callable[[T], R], items: Iterable[T], count: int, *, apart: bool = False) -> Iterator[R]:
    """Yield ``task(item)`` for each item, in order, with `count` calls running in separate threads.

    For calls that wait rather than compute, such as requests. The threads end with the last result, or when the
    iterator is closed. Items are consumed as the work proceeds, always in the calling thread. With `apart`, even a
    single call runs in a separate thread: Ctrl-C does not interrupt the call, and the iterator ends after the call.
    """
    source = iter(items)
    first = list(islice(source, 2))
    if not apart and (len(first) < 2 or count < 2):
        yield from map(task, chain(first, source))
        return
    pool = _Pool(count, "b2array-ahead")
    try:
        yield from _in_order(pool, task, chain(first, source), count)
    finally:
        pool.end()
        for thread in () if is_ending() else pool.threads:
            thread.join()


def _in_order(pool: _Pool, task: Callable[[T], R], source: Iterator[T], count: int) -> Iterator[R]:
    """Yield results in the order of the items, with `count` calls running or finished ahead of the caller."""
    calls = _Calls(pool, task)
    answers: deque[Answer[R]] = deque()
    try:
        answers.extend(map(calls.begin, islice(source, count)))
        while answers:
            value = result(answers.popleft())
            answers.extend(map(calls.begin, islice(source, 1)))
            yield value
            # The result may be large, and would stay in memory while the next result is computed.
            del value
    finally:
        calls.end()


Answer = SimpleQueue[tuple[R, BaseException | None]]
"""A queue that receives one pair: a result, and an error or None."""


def result(answer: Answer[R]) -> R:
    """Wait for an answer; return the result, or raise the error."""
    while True:
        try:
            value, error = answer.get(timeout=1)
            break
        except Empty:
            # Windows notices Ctrl-C only between two calls.
            if is_ending():
                raise make_ending_error() from None
    if error is None:
        return value
    try:
        raise error
    finally:
        # The error refers to this stack frame, and the cycle would last until garbage collection.
        del error


class _Calls(Generic[T, R]):
    """Calls of one task in threads of a pool. After `end`, no call is running."""

    def __init__(self, pool: _Pool, task: Callable[[T], R]) -> None:
        self._pool = pool
        self._task = task
        # Lists serve as counters: `append` is atomic, and needs no lock that Ctrl-C could leave locked.
        self._begun: list[None] = []
        self._over: list[None] = []
        self._ended = False
        self._news: SimpleQueue[None] = SimpleQueue()

    def begin(self, item: T) -> Answer[R]:
        """Ask the pool to call the task with an item, and return the object that receives the answer."""
        answer: Answer[R] = SimpleQueue()
        self._pool.calls.put(partial(self._call, answer, item))
        return answer

    def _call(self, answer: Answer[R], item: T) -> None:
        self._begun.append(None)
        try:
            if not self._ended:
                answer.put((self._task(item), None))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            answer.put((_END, error))
            # The traceback of the error refers to this frame.
            del answer
        finally:
            self._over.append(None)
            if self._ended:
                self._news.put(None)

    def end(self) -> None:
        """Begin no more calls, and wait for the running calls. The first interrupt is raised afterwards."""
        self._ended = True
        interrupted = None
        while len(self._over) < len(self._begun) and not is_ending():
            try:
                self._news.get()
            except BaseException as error:
                # A user who presses Ctrl-C twice does not want to wait.
                if interrupted:
                    raise
                interrupted = error
        if interrupted:
            raise interrupted


class _Pool:
    """Threads that make calls in the order of a queue.

    This is not a pool of `concurrent.futures`: there, Ctrl-C inside `submit` can leave a lock locked forever, or hide
    a running call. Queues are C code, which Ctrl-C does not interrupt.
    """

    def __init__(self, size: int, name: str) -> None:
        self.size = size
        self.calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.threads = []
        for n in range(size):
            # The threads refer only to the queue: a reference to the pool would prevent `__del__` from ending them.
            thread = threading.Thread(target=_serve, args=(self.calls,), name=f"{name}_{n}", daemon=True)
            self.threads.append(thread)
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        """End the threads after the calls in the queue."""
        for _ in range(self.size):
            self.calls.put(None)

    __del__ = end


def _serve(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        # The call refers to its item, which may be large.
        del call


_pool: _Pool | None = None
"""The pool for calls from the main thread."""


def _pool_of_size(size: int) -> _Pool:
    global _pool
    pool = _pool
    if pool is None or pool.size != size:
        # A generator of `spread` may still use the earlier pool, whose threads end with the generator.
        pool = _pool = _Pool(size, "b2array")
    return pool


def _after_fork() -> None:
    # The child process has no threads, and one of the parent's threads may have held the lock.
    global _pool, _turn
    _pool = None
    _turn = threading.RLock()


# Windows has no such function, since it does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
