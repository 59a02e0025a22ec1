"""The calls of the operating system by local stores, each of which can fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import pytest

from b2array.store import descriptors, disk, local_store

CALLS = ("open", "link", "replace", "rename", "unlink", "rmdir", "stat", "mkdir", "truncate", "fsync", "chmod")
NEED_ROOM = ("create", "write", "link", "mkdir")
"""The calls that fail on a full disk. A new file is opened by "create"."""

Run = Callable[[str, Callable[[], Any]], Any]
"""What does a call, given its name. A call that writes has a function `half`, which writes half of the bytes."""


class System:
    """The module `os`, whose calls that change or open files go through a function."""

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        self._run, self._names = run, names

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        return partial(self._call, name, value) if name in self._names else value

    def _call(self, name: str, value: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if name == "open" and len(args) > 1 and args[1] & os.O_CREAT:
            name = "create"
        return self._run(name, partial(value, *args, **options))


class File:
    """A file whose writes go through a function."""

    def __init__(self, file: Any, run: Run) -> None:
        self._file, self._run = file, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            self._file.close()

    def write(self, data: Any) -> None:
        """Write bytes."""

        def whole() -> None:
            self._file.write(data)

        def half() -> None:
            view = memoryview(data).cast("B")
            self._file.write(view[: len(view) // 2])
            self._file.flush()

        whole.half = half  # type: ignore[attr-defined]
        self._run("write", whole)

    def writelines(self, pieces: Any) -> None:
        """Write pieces, one by one."""
        for piece in pieces:
            self.write(piece)


def listen(run: Run, monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = CALLS) -> None:
    """Let the calls with these names, reads, and the writes to files go through a function."""

    def opened(path: str, mode: str, **options: Any) -> File:
        return File(open(path, mode, **options), run)  # noqa: PTH123 - Path has no opener

    read_into = disk.read_into
    for module in (descriptors, disk, local_store):
        monkeypatch.setattr(module, "os", System(run, names))
    monkeypatch.setattr(local_store, "open", opened, raising=False)
    monkeypatch.setattr(disk, "read_into", lambda *args: run("read", partial(read_into, *args)))
