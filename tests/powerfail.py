"""A disk that loses, tears and reorders what was not forced to it.

`Disk` records what a program does with the files of one directory. `Disk.crashes` then gives states of the disk that a
power failure may have left: at any moment, everything that was forced is there, and of the rest any part. The model is
that of ALICE and CrashMonkey, and stricter than real file systems:

* a write that was not forced is there, or not, or in part, by sectors of 512 bytes, in any order; the sectors that are
  missing have the old bytes, or zeros or garbage if the file has grown over them;
* cutting a file, and giving, changing or removing a name, is one operation that is there or not, whatever came later;
* forcing a file keeps its content and its size, but not its name; names are kept by forcing their directory;
* a directory that gets another name takes its files along. Forcing the directory above keeps the new name; what was
  forced in the directory itself is found under whichever name that has.

What is not recorded: files mapped into memory, lock files, and names that swap in one step.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import itertools
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

SECTOR = 512
EVERY_MOMENT = 15
"""With so many random states of the disk or more, `Disk.crashes` gives a state at every moment too."""
FORCES = ("fsync", "fdatasync")


class PendingStep(NamedTuple):
    """A file or a directory, known by its number."""

    kind: str  # file, directory
    number: int


ROOT = PendingStep("directory", 0)
Names = dict[tuple[int, str], PendingStep]
"""What has a name, by the number of the directory and the name in it."""


class Op(NamedTuple):
    """What was done. Files and directories are known by their numbers."""

    kind: str  # write, cut, force; link, rename, unlink, force directory; done
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
    base: Names = field(default_factory=dict)
    contents: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names: Names = {}
        self._directories = itertools.count(ROOT.number + 1)
        self._mutex = threading.RLock()
        self._paused = False

    # Recording.

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Take down what is done inside the block; what was there before is safe."""
        known: dict[int, PendingStep] = {}
        for path in sorted(self.root.rglob("*")):
            inode = path.stat().st_ino
            if inode not in known:
                known[inode] = self._new_directory() if path.is_dir() else self._new(path.read_bytes())
            self._names[self._place(str(path))] = known[inode]
        self.base = dict(self._names)
        with contextlib.ExitStack() as patches:
            for module, name in (
                (builtins, "open"),
                (io, "open"),
                *(
                    (os, name)
                    for name in (
                        *FORCES,
                        "link",
                        "replace",
                        "rename",
                        "unlink",
                        "remove",
                        "mkdir",
                        "rmdir",
                        "truncate",
                        "ftruncate",
                    )
                ),
            ):
                original = getattr(module, name)
                patches.callback(setattr, module, name, original)
                setattr(module, name, self._recorder(name, original))
            # Names that the system swaps in one step could not be noted: so it shall not be able to.
            original = ctypes.CDLL
            patches.callback(setattr, ctypes, "CDLL", original)
            ctypes.CDLL = lambda *_: object()  # type: ignore[assignment,misc]
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

    def _new(self, content: bytes) -> PendingStep:
        self.contents.append(content)
        return PendingStep("file", len(self.contents) - 1)

    def _new_directory(self) -> PendingStep:
        return PendingStep("directory", next(self._directories))

    def _find(self, path: str) -> PendingStep | None:
        """Return what has a path now."""
        found: PendingStep | None = ROOT
        for part in Path(path).relative_to(self.root).parts:
            found = None if found is None else self._names.get((found.number, part))
        return found

    def _place(self, path: str) -> tuple[int, str]:
        """Return the directory and the name in it that make a path."""
        above, name = os.path.split(path)
        directory = self._find(above)
        assert directory is not None, f"{above} was made unnoticed"
        return directory.number, name

    def _ours(self, path: Any, directory: int | None = None) -> str | None:
        if self._paused or isinstance(path, int):
            return None
        above = "" if directory is None else os.readlink(f"/proc/self/fd/{directory}")
        name = os.path.abspath(os.path.join(above, os.fsdecode(path)))
        return name if name.startswith(f"{self.root}{os.sep}") or name == str(self.root) else None

    def _add(self, kind: str, target: Any, *args: Any) -> None:
        self.log.append(Op(kind, target, args))

    def _recorder(self, name: str, original: Any) -> Any:
        special = {"open": self._open, "fsync": self._force, "fdatasync": self._force, "ftruncate": self._refuse}
        if name in special:
            return lambda *args, **kwargs: special[name](original, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            ours = self._ours(args[0], kwargs.get("src_dir_fd", kwargs.get("dir_fd")))
            if ours is None:
                return original(*args, **kwargs)
            with self._mutex:
                entry = self._find(ours)
                other = self._ours(args[1], kwargs.get("dst_dir_fd")) if name in _PAIRS else None
                result = original(*args, **kwargs)
                self._note(name, self._place(ours), other, entry, args)
            return result

        return call

    def _note(
        self, verb: str, place: tuple[int, str], other: str | None, entry: PendingStep | None, args: tuple[Any, ...]
    ) -> None:
        above, name = place
        if verb == "mkdir":
            entry = self._names[place] = self._new_directory()
            self._add("link", above, name, entry)
        elif verb in ("unlink", "remove", "rmdir"):
            self._add("unlink", above, name)
            self._names.pop(place, None)
        elif verb == "truncate":
            assert entry is not None
            self._add("cut", entry.number, args[1])
        else:
            assert entry is not None, "it was made unnoticed"
            assert other is not None, "nothing leaves the directory that is recorded"
            target = self._place(other)
            if verb == "link":
                self._add("link", *target, entry)
            else:
                assert target[0] == above, "files and directories are renamed in their directories here"
                self._add("rename", above, name, target[1], entry)
                del self._names[place]
            self._names[target] = entry

    def _refuse(self, original: Any, fd: int, size: int) -> None:
        assert self._ours(os.readlink(f"/proc/self/fd/{fd}")) is None, "truncate the file object instead"
        original(fd, size)

    def _force(self, original: Any, fd: int) -> None:
        path = self._ours(os.readlink(f"/proc/self/fd/{fd}"))
        original(fd)
        if path is None:
            return
        with self._mutex:
            entry = self._find(path)
            assert entry is not None, f"{path} was made unnoticed"
            self._add("force directory" if entry.kind == "directory" else "force", entry.number)

    def _open(self, original: Any, path: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        ours = self._ours(path)
        if ours is None or not set(mode) & set("xwa+"):
            return original(path, mode, buffering, *args, **kwargs)
        assert {*mode} <= {*"xwr+b"}, mode
        assert "b" in mode, mode
        with self._mutex:
            raw = _File(path, mode.replace("b", ""))
            entry = self._find(ours)
            if entry is None:
                place = self._place(ours)
                entry = self._names[place] = self._new(b"")
                self._add("link", *place, entry)
            elif "w" in mode:
                self._add("cut", entry.number, 0)
        raw.disk, raw.inode = self, entry.number
        return raw if buffering == 0 else io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    # What a power failure may leave.

    def crashes(self, seed: int, count: int) -> Iterator[Crash]:
        """Give states of the disk: at every moment one with all or nothing that was not forced, then random ones.

        Where few random ones are asked for, the first are those of every third moment or so.
        """
        rng = random.Random(seed)
        moments = range(len(self.log) + 1)
        for moment in moments[:: max(1, EVERY_MOMENT // count)]:
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
        names = dict(self.base)
        files = {entry.number: bytearray(self.contents[entry.number]) for entry in _files(names)}
        for at, op in enumerate(log):
            if op.kind in ("write", "cut"):
                content = files.setdefault(op.target, bytearray())
                safe = at < forced["force"].get(op.target, -1)
                if safe or rng.random() < share:
                    _apply(content, op, rng, whole=safe or rng.random() >= torn)
            elif op.kind in ("link", "rename", "unlink"):
                safe = at < forced["force directory"].get(op.target, -1)
                if safe or rng.random() < share:
                    _rename(names, op)
        there = _paths(names)
        found = {path: bytes(files.get(entry.number, b"")) for path, entry in there.items() if entry.kind == "file"}
        made = frozenset(path for path, entry in there.items() if entry.kind == "directory")
        return Crash(moment, sum(op.kind == "done" for op in log), found, made)


_PAIRS = ("link", "replace", "rename")


def _files(names: Names) -> Iterator[PendingStep]:
    return (entry for entry in names.values() if entry.kind == "file")


def _paths(names: Names) -> dict[str, PendingStep]:
    """Return what can be reached from the root, by its path."""
    inside: dict[int, list[tuple[str, PendingStep]]] = {}
    for (directory, name), entry in names.items():
        inside.setdefault(directory, []).append((name, entry))
    found = {".": ROOT}
    waiting = [(".", ROOT)]
    while waiting:
        above, directory = waiting.pop()
        for name, entry in inside.get(directory.number, ()):
            path = os.path.normpath(os.path.join(above, name))
            found[path] = entry
            if entry.kind == "directory":
                waiting.append((path, entry))
    return found


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


def _rename(names: Names, op: Op) -> None:
    if op.kind == "link":
        name, entry = op.args
        names[op.target, name] = entry
    elif op.kind == "unlink":
        names.pop((op.target, op.args[0]), None)
    else:
        source, target, entry = op.args
        if entry.kind == "directory":  # it has one name only, even if an earlier change of that was lost
            for place in [place for place, each in names.items() if each == entry]:
                del names[place]
        elif names.get((op.target, source)) == entry:
            del names[op.target, source]
        names[op.target, target] = entry


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
