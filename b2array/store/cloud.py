"""Object stores whose servers compare versions while they write, so that commits are conditional requests.

Each cloud has a subclass with its requests: `S3Store`, `GcsStore`, `AzureStore`. The subclass sends them through the
cloud's file system of fsspec, which provides options, credentials and retries.
"""

from __future__ import annotations

import errno
import itertools
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import NoneType
from typing import Any, ClassVar, NamedTuple, TypeVar

from b2array import threads
from b2array.buffers import Buffer
from b2array.errors import LimitError
from b2array.store import ranges, upload
from b2array.store.base import (
    Capabilities,
    HiddenError,
    Stamp,
    Version,
    conflict,
    join_pieces,
    make_hidden_error,
    where,
)
from b2array.store.file_systems import spell_out
from b2array.store.remote import ABSENT, FsspecStore, answer, at_once, join, patiently, status_of
from b2array.store.spans import Span

__all__ = ["ABSENT", "CloudStore", "UploadPart", "remove_each"]

_T = TypeVar("_T")

_BUSY = "the server refused a write because another request was changing the object; repeat it"
_HIDING = os.urandom(16)  # a key: without it, somebody could find a short password by trying


class UploadPart(NamedTuple):
    """A part of an object: its number, from 0 on, its offset, and its bytes. The last part has the object's size."""

    number: int
    start: int
    content: bytes
    total: int | None

    @property
    def stop(self) -> int:
        """The offset of the end of the part."""
        return self.start + len(self.content)


class CloudStore(FsspecStore):
    """An object or prefix in a bucket of a server that supports conditional requests.

    Conditional requests create and replace objects, so no update is lost. The store needs no permission to list.
    """

    can = Capabilities(compare=True)

    put_limit: ClassVar[int]
    """The maximum number of bytes that one conditional request can write."""

    uploads: ClassVar[int] = 4
    """The number of parts of an object to send at the same time."""

    _cannot_list = False

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        super().__init__(url, storage_options)
        # Equal stores share cached blocks. Stores whose options are not plain values cannot be compared.
        options = spell_out(self._options)
        asked = repr((url, sorted(options.items()))) if _plain(options) else os.urandom(16).hex()
        self._ident = blake2b(asked.encode(), key=_HIDING, digest_size=16).hexdigest()

    # The requests of a cloud. `expected` is a condition for writing: a version, `ABSENT`, or None for no condition.

    @abstractmethod
    async def _get(
        self,
        fs: Any,
        path: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        """Read a range of an object."""

    @abstractmethod
    async def _ask(self, fs: Any, path: str) -> Stamp:
        """Read the state of an object."""

    @abstractmethod
    async def _send(self, fs: Any, path: str, content: bytes, expected: Version | None) -> Version:
        """Write an object; return its version."""

    @abstractmethod
    async def _begin(self, fs: Any, path: str, expected: Version | None) -> Any:
        """Begin an upload in parts; return its identifier."""

    @abstractmethod
    async def _send_part(self, fs: Any, path: str, begun: Any, part: UploadPart) -> Any:
        """Send a part; return its identifier."""

    @abstractmethod
    async def _finish(
        self,
        fs: Any,
        path: str,
        begun: Any,
        sent: list[Any],
        expected: Version | None,
    ) -> Version:
        """Complete the upload, so that the object appears; return its version."""

    @abstractmethod
    async def _abort(self, fs: Any, path: str, begun: Any) -> None:
        """Discard an upload and its parts."""

    @abstractmethod
    async def _remove(self, fs: Any, paths: Sequence[str]) -> None:
        """Remove objects, if they exist."""

    # The code for all clouds.

    def _is_busy(self, error: Exception) -> bool:
        """Return whether a server has refused a write only because another request was changing the object.

        Then it has not compared versions, and the object may not exist.
        """
        return status_of(error) == 409

    def _is_worth_repeating(self, error: Exception, expected: Version | None) -> bool:
        """Return whether to send a refused write again: another answer shows which write was first."""
        return self._is_busy(error)

    def _translate(self, error: Exception, name: str) -> Exception:
        if self._is_busy(error):
            return OSError(errno.EBUSY, _BUSY, where(self.url, name))
        if isinstance(error, HiddenError):
            return make_hidden_error(where(self.url, name))
        # File systems do not check before they write: an existing object means that a condition has failed.
        if isinstance(error, FileExistsError):
            return conflict(where(self.url, name))
        return super()._translate(error, name)

    def _answers(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        return self._get_each(partial(self._of_readable, self._get), spans, expected)

    def _describe(self, fs: Any) -> ranges.Client | None:
        if ranges.has_proxy():
            return None
        return answer(fs.loop, partial(self._settings, fs))

    async def _settings(self, fs: Any) -> ranges.Client | None:
        """Return a client of obstore that sends the file system's requests with its credentials; None if it cannot."""
        return None

    def _address_of(self, fs: Any, path: str) -> ranges.Address | None:
        bucket, key, version = (*fs.split_path(path), None)[:3]
        if version is not None or not (ranges.is_plain(bucket) and ranges.is_plain(key)):
            return None
        return ranges.Address(bucket, key)

    def stamp(self, name: str) -> Stamp:
        return self._wait(name, partial(self._of_readable, self._ask))

    async def _of_readable(
        self,
        request: Callable[..., Awaitable[_T]],
        fs: Any,
        path: str,
        *args: Any,
    ) -> _T:
        """Send a request that reads; raise HiddenError if it was denied, but the object may be missing."""
        try:
            return await _of_object(request, fs, path, *args)
        except Exception as error:
            if status_of(error) != 403 or await self._may_list(fs, path):
                raise
        raise HiddenError

    async def _may_list(self, fs: Any, path: str) -> bool:
        """Return whether the user may list, so that a denied object is known to exist; call this after a denial."""
        if self._cannot_list:
            return False
        try:
            await self._list_one(fs, path)
        except Exception as error:
            if status_of(error) != 403:
                raise
            self._cannot_list = True
        return not self._cannot_list

    async def _list_one(self, fs: Any, path: str) -> None:
        """List one object, on servers that deny access to missing objects to users who may not list."""

    def _list(self, fs: Any, verb: str, root: str, **options: Any) -> Iterable[Any]:
        entries: Iterable[Any] = answer(fs.loop, partial(getattr(fs, f"_{verb}"), root, **options))
        # An earlier denial was a fault of the server, or the user may list now.
        self._cannot_list = False
        return entries

    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        content = upload.split(data) if expected is None else join_pieces(data)
        place = where(self.url, name)
        if isinstance(content, bytes) and len(content) > self.put_limit:
            raise LimitError(f"{place}: {len(content)} bytes are too many to replace an object in one request")
        try:
            return self._write(name, content, expected)
        except FileNotFoundError:
            if expected is None:
                raise
        raise conflict(place)

    def _put(self, name: str, content: bytes | bytearray, expected: Version | None) -> Stamp:
        version = self._wait(name, self._send_patiently, content, expected)
        self._forget(name)
        return Stamp(len(content), version)

    async def _send_patiently(self, fs: Any, path: str, content: bytes, expected: Version | None) -> Version:
        send = partial(_of_object, self._send, fs, path, content, expected)
        return await patiently(send, lambda error: self._is_worth_repeating(error, expected))

    def _put_parts(self, name: str, parts: Iterator[bytes], expected: Version | None) -> Stamp:
        begun: list[Any] = []

        def begin(_: None) -> None:
            begun.append(self._wait(name, partial(_of_object, self._begin), expected))

        def send(part: UploadPart) -> Any:
            return self._wait(name, self._send_part, *begun, part)

        try:
            # In a separate thread, so that after Ctrl-C the request has ended, and the upload can be discarded.
            deque(threads.ahead(begin, [None], 1, apart=True), maxlen=0)
            sent: list[Any] = []
            numbered = _number(parts)
            while some := list(itertools.islice(numbered, self.uploads)):
                sent += threads.ahead(send, some, self.uploads, apart=True)
                nbytes = some[-1].stop
                # Free these parts before the next ones are made.
                some.clear()
            version = self._wait(name, self._finish, *begun, sent, expected)
        except BaseException:
            if begun:
                # The first error is more informative than a failure to clean up. The cloud, or a rule of the bucket,
                # removes the remaining parts.
                with suppress(Exception):
                    self._wait(name, self._abort, *begun)
            raise
        self._forget(name)
        return Stamp(nbytes, version)

    def _forget(self, name: str) -> None:
        """Drop the listings that the file system has cached."""
        self._call(name, lambda fs, path: fs.invalidate_cache(fs._parent(path)))

    def delete(self, names: Iterable[str]) -> None:
        asked = list(names)
        self._wait("", lambda fs, root: self._remove(fs, [join(root, name) for name in asked]))


async def _of_object(request: Callable[..., Awaitable[_T]], fs: Any, path: str, *args: Any) -> _T:
    """Send a request about an object. A bare bucket is not an object; refuse it here, because the clients would not."""
    if "/" not in path.strip("/"):
        raise FileNotFoundError(path)
    return await request(fs, path, *args)


async def remove_each(requests: Iterable[Awaitable[object]]) -> None:
    """Send requests that remove objects, and wait for them. A missing object counts as removed."""
    for error in await at_once(requests):
        if isinstance(error, BaseException) and not isinstance(error, FileNotFoundError) and status_of(error) != 404:
            raise error


def _number(contents: Iterator[bytes]) -> Iterator[UploadPart]:
    """Yield the parts of an object; the last one has the size of the object."""
    start, ahead = 0, next(contents)
    for number in itertools.count():
        content, ahead = ahead, next(contents, b"")
        stop = start + len(content)
        yield UploadPart(number, start, content, None if ahead else stop)
        if not ahead:
            return
        start = stop


def _plain(value: object) -> bool:
    """Return whether values with equal texts are equal values."""
    if isinstance(value, dict):
        return _plain([*value, *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return type(value) in (str, bytes, bool, int, float, NoneType)
