"""The settings: blocks of `using` that overlap in any order leave what was assigned."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import examples

import b2array
from b2array import config


class InThread:
    """A block of `using` in a thread, which begins and ends when the test says."""

    def __init__(self, **settings: Any) -> None:
        self._has_begun, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(settings,))
        self._thread.start()
        assert self._has_begun.wait(60)

    def _run(self, settings: dict[str, Any]) -> None:
        with config.using(**settings):
            self._has_begun.set()
            assert self._may_end.wait(60)

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_blocks_that_overlap_in_threads_leave_what_was_set_before(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((100, 100))
    path = tmp_path / "a.b2nd"
    b2array.save(path, x, cparams=b2array.CParams(clevel=0))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    durable = config.durable

    rescue = InThread(verify="never", durable="off")
    other = InThread(verify="always")
    assert (config.verify, config.durable) == ("always", "off")
    rescue.end()
    assert (config.verify, config.durable) == ("always", durable)
    other.end()
    assert (config.verify, config.durable) == ("always", durable)
    with pytest.raises(b2array.errors.ChecksumError):
        b2array.open(path)[...]


def test_the_block_that_began_last_decides_and_then_the_ones_that_are_left() -> None:
    before = config.threads
    blocks = [InThread(threads=count) for count in (11, 12, 13)]
    assert config.threads == 13
    blocks[1].end()
    assert config.threads == 13
    blocks[2].end()
    assert config.threads == 11
    blocks[0].end()
    assert config.threads == before


def test_threads_that_run_already_see_the_block_of_their_caller() -> None:
    seen: list[int] = []
    ask, answered = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        for _ in range(2):
            ask.acquire()
            seen.append(config.retries)
            answered.release()

    thread = threading.Thread(target=work)
    thread.start()
    before = config.retries
    with config.using(retries=77):
        ask.release()
        assert answered.acquire(timeout=60)
    ask.release()
    thread.join(60)
    assert seen == [77, before]


def test_generators_that_are_closed_in_another_order_leave_what_was_set_before() -> None:
    def steps(count: int) -> Iterator[int]:
        with config.using(threads=count):
            yield config.threads

    before = config.threads
    first, second = steps(11), steps(12)
    assert (next(first), next(second)) == (11, 12)
    first.close()  # type: ignore[attr-defined]
    assert config.threads == 12
    del second
    assert config.threads == before


def test_equal_blocks_are_told_apart() -> None:
    before = config.threads
    first, second, third = (config.using(threads=count) for count in (11, 12, 11))
    for block in (first, second, third):
        block.__enter__()
    third.__exit__(None, None, None)
    assert config.threads == 12
    second.__exit__(None, None, None)
    assert config.threads == 11
    first.__exit__(None, None, None)
    assert config.threads == before


def test_an_assignment_during_a_block_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "retries", 3)
    block = InThread(retries=0, threads=11)
    before = config.coalesce_gap
    config.retries = 9
    assert (config.retries, config.threads) == (9, 11)
    block.end()
    assert (config.retries, config.coalesce_gap) == (9, before)


def test_a_setting_that_is_refused_leaves_the_others_as_they_were() -> None:
    before = config.threads
    with pytest.raises(ValueError, match=r"config\.retries must be"), config.using(threads=11, retries=-1):
        pass
    assert config.threads == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_a_forked_process_can_change_settings_while_a_thread_of_its_parent_did() -> None:
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with config._changing:
            locked.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for ever
        with config.using(threads=11):
            os._exit(config.threads)
    done.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "assign"]), st.integers(0, 9)), max_size=30))
@settings(max_examples=examples(100))
def test_any_order_of_blocks_and_assignments(steps: list[tuple[str, int]]) -> None:
    before = config.retries
    assigned, running = before, list[tuple[AbstractContextManager[None], int | None]]()
    try:
        for number, (step, at) in enumerate(steps):
            if step == "begin":
                block = config.using(retries=100 + number)
                block.__enter__()
                running.append((block, 100 + number))
            elif step == "assign":
                config.retries = assigned = number
                running = [(block, None) for block, _ in running]
            elif running:
                running.pop(at % len(running))[0].__exit__(None, None, None)
            values = [value for _, value in running if value is not None]
            assert config.retries == (values[-1] if values else assigned)
        while running:
            running.pop(0)[0].__exit__(None, None, None)
        assert config.retries == assigned
    finally:
        for block, _ in running:
            block.__exit__(None, None, None)
        config.retries = before
