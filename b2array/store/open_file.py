"""One object in a file that the caller has opened: a file on disk, a `BytesIO`, an entry of an archive. Read-only.

The store reads files on disk at an offset, without moving their position. In other files, a thread moves the position
to its bytes and reads them, one thread at a time for all such files, because entries of one archive share the position
of its file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeGuard, cast

from b2array.buffers import Buffer
from b2array.errors import FormatError, ReadOnlyError, UnsupportedError
from b2array.store.base import (
    READ_ONLY,
    Head,
    Listed,
    Mutex,
    Stamp,
    Store,
    Version,
    as_answer,
    merge,
    scatter,
    too_short,
)
from b2array.store.file_systems import address_of
from b2array.store.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BinaryFile", "OpenFileStore", "is_open_file", "place_of_file"]

_READ_LIMIT = 16 * 2**20
_turn = Mutex()
_HAS_PREAD: Final = sys.platform != "win32"


class BinaryFile(Protocol):
    """A binary file that was opened for reading."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position."""
        ...


def is_open_file(place: object) -> TypeGuard[BinaryFile]:
    """Return whether an argument is an open file, or a file of fsspec that can be opened, and not a name."""
    if isinstance(place, io.IOBase) or _is_opener(place):
        return True
    # Some classes of files belong neither to `io` nor to fsspec, such as the classes of tempfile.
    return all(callable(getattr(place, verb, None)) for verb in ("read", "seek", "tell"))


def _is_opener(place: object) -> bool:
    """Return whether an argument is the result of `fsspec.open`."""
    core = sys.modules.get("fsspec.core")
    return core is not None and isinstance(place, core.OpenFile)


def place_of_file(file: Any) -> tuple[str | os.PathLike[str], Mapping[str, Any] | None] | None:
    """Return the URL and options of a file of fsspec, if its file system has the same bytes under its path; else None.

    A store for this URL reads only the necessary bytes, by many requests at once.
    """
    if _is_opener(file):
        plain, fs = file.compression is None and "b" in file.mode, file.fs
    else:
        spec = sys.modules.get("fsspec.spec")
        if spec is None or not isinstance(file, spec.AbstractBufferedFile):
            return None
        plain, fs = file.mode == "rb", file.fs
    return address_of(file.path, None, fs) if plain else None


class OpenFileStore(Store):
    """One object in an open file. The file must stay open, and must not change.

    A pickle of the store includes the file, if the file can be pickled.
    """

    can = READ_ONLY

    def __init__(self, file: Any) -> None:
        self._given = file
        self._opener = file if _is_opener(file) else None
        if self._opener is not None and "b" not in file.mode:
            raise _text_file(file.path)
        if isinstance(file, io.TextIOBase):
            raise _text_file(file.name if isinstance(file, io.TextIOWrapper) else "the file")
        name = file.path if self._opener is not None else getattr(file, "name", None)
        self.url = f"open file {name}" if isinstance(name, str) else f"open file of the class {type(file).__name__}"
        self._process = os.getpid()
        self._opened: Any = None

    def __repr__(self) -> str:
        return f"<OpenFileStore {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def _file(self) -> Any:
        """Return the open file. The caller holds `_turn`."""
        if self._opener is None:
            if self._process != os.getpid() and not isinstance(self._given, io.BytesIO):
                raise UnsupportedError(
                    f"{self.url} shares its position with the process that opened it: open the file in this process"
                )
            return self._given
        if self._opened is None or self._process != os.getpid():
            self._process = os.getpid()
            self._opened = self._opener.open()
        return self._opened

    def _at(self, start: int, stop: int) -> memoryview:
        """Read the bytes from `start` to `stop`, or to the end of the file."""
        on_disk = self._descriptor()
        if on_disk is not None:
            return memoryview(bytearray(_read_all(lambda n, at: os.pread(on_disk, n, at), start, stop)))
        with _turn.held:
            file = self._file()
            file.seek(start)
            return memoryview(bytearray(_read_all(lambda n, _: file.read(n), start, stop)))

    def _descriptor(self) -> int | None:
        """Return the descriptor of a plain file on disk; None for other files, which may decode their bytes."""
        raw = self._given.raw if type(self._given) in (io.BufferedReader, io.BufferedRandom) else self._given
        return raw.fileno() if _HAS_PREAD and type(raw) is io.FileIO else None

    def _size(self) -> int:
        with _turn.held:
            return cast(int, self._file().seek(0, io.SEEK_END))

    def read(
        self,
        spans: Sequence[Span],
        *,
        expected: Version | None = None,  # noqa: ARG002
        clip: bool = False,
    ) -> list[memoryview]:
        merged = merge(self.url, spans, _READ_LIMIT)
        buffers = []
        for each in merged:
            name, start, stop = each.span
            self._require_unnamed(name)
            data = self._at(start, stop)
            if len(data) < stop - start and not clip:
                raise too_short(self.url, *self._first_missing(spans, start + len(data)))
            buffers.append(data)
        return scatter(spans, merged, buffers)

    @staticmethod
    def _first_missing(spans: Sequence[Span], end: int) -> tuple[int, int, int]:
        span = next(span for span in spans if span.stop > end)
        return span.start, span.stop, end - span.start

    def _require_unnamed(self, name: str) -> None:
        if name:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{name}")

    def head(
        self,
        names: Sequence[str],
        nbytes: int,
        *,
        offset: int = 0,
    ) -> list[Head | Exception]:
        return [self._head(name, nbytes, offset) for name in names]

    def _head(self, name: str, nbytes: int, offset: int) -> Head | Exception:
        try:
            self._require_unnamed(name)
            return Head(self._at(offset, offset + nbytes), None)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return as_answer(error)

    def stamp(self, name: str) -> Stamp:
        self._require_unnamed(name)
        return Stamp(self._size(), None)

    def listing(self) -> dict[str, Listed]:
        return {"": Listed(self._size(), None)}

    def walk(self) -> list[str]:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.url)

    def _refuse(self) -> NoReturn:
        raise ReadOnlyError(f"{self.url} can only be read")

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:  # noqa: ARG002
        self._refuse()

    def replace(
        self,
        name: str,  # noqa: ARG002
        data: Buffer | Iterable[Buffer],  # noqa: ARG002
        *,
        expected: Version | None = None,  # noqa: ARG002
    ) -> Stamp:
        self._refuse()

    def delete(self, names: Iterable[str]) -> None:  # noqa: ARG002
        self._refuse()

    def close(self) -> None:
        with _turn.held:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()


def _text_file(name: object) -> TypeError:
    return TypeError(f"expected a file of bytes, but {name} was opened as text: open it with mode 'rb'")


def _read_all(read: Any, start: int, stop: int) -> bytes:
    """Read from `start` to `stop`, or to the end, because one call may return fewer bytes than requested."""
    pieces: list[bytes] = []
    at = start
    while at < stop:
        piece = read(min(stop - at, _READ_LIMIT), at)
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise FormatError(f"expected a file of bytes, found one of {type(piece).__name__}")
        if not len(piece):
            break
        pieces.append(bytes(piece))
        at += len(piece)
    return b"".join(pieces)
