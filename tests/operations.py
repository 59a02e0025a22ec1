"""The operations of stores, one of which can be met by a failure or by the end of the process."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from b2array.store.base import Store

WRITES = ("create", "replace", "append", "patch", "delete", "move_in", "move_here", "exchange")
READS = ("read", "gather", "head", "stamp", "walk", "listing")
STEPS = (*WRITES, "swap", "force", "withdraw")
"""Everything that changes what others find, or what is on the disk."""


class Killed(BaseException):
    """Stands for the end of a process: nothing that it does afterwards reaches the store."""


def in_a_child(task: Callable[[], object]) -> None:
    """Do something in a forked process, which ends without cleaning up."""
    pid = os.fork()
    if not pid:
        try:
            task()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


def begin_there(thread: threading.Thread) -> None:
    """Start a thread, and give it a moment: it may wait for the end of what it meets."""
    thread.start()
    thread.join(0.02)


class Operations(threading.local):
    """The operations of stores in the order in which they come; one of them can be met by something.

    Each thread counts the operations that it does itself.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_watched = False
        self.meet: Callable[[int, str, Callable[[], Any]], Any] | None = None

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Count an operation of the thread that is looked at; what it calls itself is part of it."""
        if not self.is_watched:
            return call()
        number = len(self.names)
        self.names.append(name)
        self.is_watched = False
        try:
            return call() if self.meet is None else self.meet(number, name, call)
        finally:
            self.is_watched = True

    def watch(
        self, task: Callable[[], object], meet: Callable[[int, str, Callable[[], Any]], Any] | None = None
    ) -> list[str]:
        """Do something, and return the operations that it took; raises what it raises."""
        self.names, self.meet, self.is_watched = [], meet, True
        try:
            task()
        finally:
            self.is_watched = False
        return self.names

    def meets(self, moment: int, task: Callable[[], object], act: Callable[[], object]) -> bool:
        """Do something, and something else just before its operation of a number; say whether there was that one."""

        def meet(number: int, _: str, call: Callable[[], Any]) -> Any:
            if number == moment:
                act()
            return call()

        return len(self.watch(task, meet)) > moment

    def listen(
        self, kind: type[Store], monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = (*WRITES, *READS)
    ) -> None:
        """Let the operations of a kind of store with these names run through this."""
        for each in kind.__mro__:
            for name in names:
                if inspect.isfunction(vars(each).get(name)):
                    monkeypatch.setattr(each, name, self._watched(name, vars(each)[name]))

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(store: Any, *args: Any, **options: Any) -> Any:
            def call(*others: Any) -> Any:
                return original(store, *(others or args), **options)

            if name == "append":  # a file may be cut anywhere
                call.half = lambda: call(*args[:2], _half(args[2]))  # type: ignore[attr-defined]
            # A server may refuse it, or lose the answer and refuse the same request when it is repeated.
            call.has_condition = name == "create" or bool(options.get("expected"))  # type: ignore[attr-defined]
            return self.run(name, call)

        return operation


def compare(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kind of store behave as an object store, which has no locks and compares versions."""
    monkeypatch.setattr(kind, "can", replace(kind.can, lock=False, compare=True))
    monkeypatch.setattr(kind, "lock", lambda *_, **__: nullcontext())


def _half(pieces: Any) -> bytes:
    content = pieces if isinstance(pieces, bytes) else b"".join(pieces)
    return content[: len(content) // 2]
