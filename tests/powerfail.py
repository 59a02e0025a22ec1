"""A disk that loses, tears and reorders what was not forced to it.

`Disk` records what a program does with the files of one directory. `Disk.crashes` then gives states of the disk that a
power failure may have left: at any moment, everything that was forced is there, and of the rest any part. The model is
that of ALICE and CrashMonkey, and stricter than real file systems:

* a write that was not forced is there, or not, or in part, by sectors of 512 bytes, in any order; the sectors that are
  missing have the old bytes, or zeros or garbage if the file has grown over them;
* cutting a file, and giving, changing or removing a name, is one operation that is there or not, whatever came later;
* forcing a file keeps its content and its size, but not its name; names are kept by forcing their directory.

What is not recorded: files mapped into memory, and the content of lock files.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SECTOR = 512
FORCES = ("fsync", "fdatasync")


class Op(NamedTuple):
    """What was done. A file is known by a number, a directory and a name by its path."""

    kind: str  # write, cut, force; link, rename, unlink, mkdir, rmdir, force directory; done
    target: Any  # the file, or the directory whose names change
    args: tuple[Any, ...] = ()


class Crash(NamedTuple):
    """A state of the disk: how many commits had returned, and the files."""

    moment: int
    done: int
    files: dict[str, bytes]
    directories: frozenset[str]


@dataclass
class Disk:
    """A record of what happens to the files below a directory, from `record` on.

    Parameters
    ----------
    root : Path
    """

    root: Path
    log: list[Op] = field(default_factory=list)
    base: dict[str, int] = field(default_factory=dict)
    contents: list[bytes] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._names: dict[str, int] = {}
        self._mutex = threading.RLock()
        self._paused = False

    # Recording.

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Take down what is done inside the block; what was there before is safe."""
        for path in self.root.rglob("*"):
            name = str(path)
            if path.is_dir():
                self.directories.add(name)
            else:
                inode = next((self._names[other] for other in self._names if os.path.samefile(other, name)), None)
                self._names[name] = self._new(path.read_bytes()) if inode is None else inode
        self.directories.add(str(self.root))
        self.base = dict(self._names)
        with contextlib.ExitStack() as patches:
            for module, name in (
                (builtins, "open"), (io, "open"), *((os, name) for name in (
                    *FORCES, "link", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate"
                )),
            ):  # fmt: skip
                original = getattr(module, name)
                patches.callback(setattr, module, name, original)
                setattr(module, name, self._recorder(name, original))
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in the block, which only reads."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def done(self) -> None:
        """Note that a commit has returned."""
        self.log.append(Op("done", None))

    def _new(self, content: bytes) -> int:
        self.contents.append(content)
        return len(self.contents) - 1

    def _ours(self, path: Any) -> str | None:
        if self._paused or isinstance(path, int):
            return None
        name = os.path.abspath(os.fsdecode(path))
        return name if name.startswith(f"{self.root}{os.sep}") or name == str(self.root) else None

    def _add(self, kind: str, target: Any, *args: Any) -> None:
        self.log.append(Op(kind, target, args))

    def _recorder(self, name: str, original: Any) -> Any:
        special = {"open": self._open, "fsync": self._force, "fdatasync": self._force, "ftruncate": self._refuse}
        if name in special:
            return lambda *args, **kwargs: special[name](original, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            ours = self._ours(args[0])
            if ours is None:
                return original(*args, **kwargs)
            with self._mutex:
                inode = self._names.get(ours)
                result = original(*args, **kwargs)
                self._note(name, ours, os.path.abspath(os.fsdecode(args[1])) if name in _PAIRS else "", inode, args)
            return result

        return call

    def _note(self, name: str, path: str, other: str, inode: int | None, args: tuple[Any, ...]) -> None:
        above = os.path.dirname(path)
        if name == "link":
            self._add("link", os.path.dirname(other), other, inode)
            self._names[other] = inode
        elif name in ("replace", "rename"):
            assert inode is not None, "directories are not renamed here"
            assert os.path.dirname(other) == above, "files are renamed in their directories here"
            self._add("rename", above, path, other, inode)
            del self._names[path]
            self._names[other] = inode
        elif name in ("unlink", "remove"):
            self._add("unlink", above, path)
            self._names.pop(path, None)
        elif name == "truncate":
            self._add("cut", inode, args[1])
        else:
            self._add(name, above, path)

    def _refuse(self, original: Any, fd: int, size: int) -> None:
        assert self._ours(os.readlink(f"/proc/self/fd/{fd}")) is None, "truncate the file object instead"
        original(fd, size)

    def _force(self, original: Any, fd: int) -> None:
        path = self._ours(os.readlink(f"/proc/self/fd/{fd}"))
        original(fd)
        if path is None:
            return
        with self._mutex:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                self._add("force directory", path)
            else:
                self._add("force", self._names[path])

    def _open(self, original: Any, path: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        ours = self._ours(path)
        if ours is None or not set(mode) & set("xwa+"):
            return original(path, mode, buffering, *args, **kwargs)
        assert {*mode} <= {*"xwr+b"}, mode
        assert "b" in mode, mode
        with self._mutex:
            raw = _File(path, mode.replace("b", ""))
            inode = self._names.get(ours)
            if inode is None:
                inode = self._names[ours] = self._new(b"")
                self._add("link", os.path.dirname(ours), ours, inode)
            elif "w" in mode:
                self._add("cut", inode, 0)
        raw.disk, raw.inode = self, inode
        return raw if buffering == 0 else io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    # What a power failure may leave.

    def crashes(self, seed: int, count: int) -> Iterator[Crash]:
        """Give states of the disk: at every moment one with all or nothing that was not forced, then random ones."""
        rng = random.Random(seed)
        moments = range(len(self.log) + 1)
        for moment in moments:
            yield self._crash(rng, moment, rng.choice((0.0, 1.0)), torn=0.0)
        for _ in range(count):
            share = rng.choice((0.05, 0.2, 0.5, 0.8, 0.95))
            yield self._crash(rng, rng.choice(moments), share, torn=rng.choice((0.0, 0.3, 1.0)))

    def _crash(self, rng: random.Random, moment: int, share: float, *, torn: float) -> Crash:
        log = self.log[:moment]
        forced = {"force": {}, "force directory": {}}
        for at, op in enumerate(log):
            if op.kind in forced:
                forced[op.kind][op.target] = at
        names, directories = dict(self.base), set(self.directories)
        files = {inode: bytearray(self.contents[inode]) for inode in self.base.values()}
        for at, op in enumerate(log):
            if op.kind in ("write", "cut"):
                content = files.setdefault(op.target, bytearray())
                safe = at < forced["force"].get(op.target, -1)
                if safe or rng.random() < share:
                    _apply(content, op, rng, whole=safe or rng.random() >= torn)
            elif op.kind in ("link", "rename", "unlink", "mkdir", "rmdir"):
                safe = at < forced["force directory"].get(op.target, -1)
                if safe or rng.random() < share:
                    _rename(names, directories, op)
        there = {path for path in directories if _within(path, directories, str(self.root))}
        found = {
            os.path.relpath(path, self.root): bytes(files.get(inode, b""))
            for path, inode in names.items()
            if os.path.dirname(path) in there
        }
        made = frozenset(os.path.relpath(path, self.root) for path in there)
        return Crash(moment, sum(op.kind == "done" for op in log), found, made)


_PAIRS = ("link", "replace", "rename")


def _within(path: str, directories: set[str], root: str) -> bool:
    while path != root:
        if path not in directories:
            return False
        path = os.path.dirname(path)
    return True


def _apply(content: bytearray, op: Op, rng: random.Random, *, whole: bool) -> None:
    if op.kind == "cut":
        (size,) = op.args
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    offset, data = op.args
    stop = offset + len(data)
    if whole:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset:stop] = data
        return
    # The size may have got to the disk before the content.
    reach = rng.choice((len(content), stop))
    if reach > len(content):
        filler = rng.choice((bytes, rng.randbytes))
        content.extend(filler(reach - len(content)))
    share = rng.random()
    for first in range(offset - offset % SECTOR, stop, SECTOR):
        start, end = max(first, offset), min(first + SECTOR, stop)
        if rng.random() < share:
            content.extend(bytes(max(0, start - len(content))))
            content[start:end] = data[start - offset : end - offset]


def _rename(names: dict[str, int], directories: set[str], op: Op) -> None:
    if op.kind == "link":
        names[op.args[0]] = op.args[1]
    elif op.kind == "rename":
        source, target, inode = op.args
        if names.get(source) == inode:
            del names[source]
        names[target] = inode
    elif op.kind == "unlink":
        names.pop(op.args[0], None)
    elif op.kind == "mkdir":
        directories.add(op.args[0])
    else:
        directories.discard(op.args[0])


class _File(io.FileIO):
    """A file whose writes are recorded as the system gets them."""

    disk: Disk
    inode: int

    def write(self, data: Any) -> int:
        with self.disk._mutex:
            offset = self.tell()
            written = super().write(data)
            self.disk._add("write", self.inode, offset, bytes(memoryview(data).cast("B")[:written]))
        return written

    def truncate(self, size: int | None = None) -> int:
        with self.disk._mutex:
            result = super().truncate(size)
            self.disk._add("cut", self.inode, result)
        return result


def materialise(crash: Crash, root: Path) -> None:
    """Write a state of the disk to an empty directory."""
    for name in sorted(crash.directories):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, content in crash.files.items():
        (root / name).write_bytes(content)
