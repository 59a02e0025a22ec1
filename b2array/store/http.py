"""Stores on HTTP servers, read-only."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from b2array.errors import ConflictError, UnsupportedError
from b2array.store import ranges
from b2array.store.base import Capabilities, Listed, Stamp, Version, stale_reader, where
from b2array.store.remote import FsspecStore, bytes_range, patiently, stamp_of, status_of
from b2array.store.secrets import unsigned
from b2array.store.spans import Span

__all__ = ["HttpStore"]

_BUSY = (429, 500, 502, 503, 504)
_COMPRESSED = ("br", "deflate", "gzip", "zstd")
_OLD_ENOUGH = timedelta(seconds=60)
"""Longer than a second, because the clocks of server and client may differ."""
_MOST_YOUNG = 1024
_PLAIN_URL = re.compile(r"(https?://[A-Za-z0-9.-]+(?::\d+)?)/(.+)")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class HttpStore(FsspecStore):
    """An object, or a prefix of objects, on an HTTP server. Read-only.

    The store compares the range of each answer with the requested range. It repeats a request up to `config.retries`
    times if the server is overloaded, or if the answer breaks off.
    """

    can = Capabilities(write=False, lists=False)
    _serves_ends = True

    @property
    def connections(self) -> int:
        """The number of concurrent requests, which the client allows."""
        return 100

    def _answers(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        # Without a strong entity tag there is nothing to compare.
        answers = self._get_each(self._get, spans, expected if _is_strong(expected) else None)
        return [
            each if isinstance(each, Exception) else _answer(span, *each)
            for span, each in zip(spans, answers, strict=True)
        ]

    def _describe(self, fs: Any) -> ranges.Client | None:
        from fsspec.implementations.http import HTTPFileSystem, get_client

        headers = fs.kwargs.get("headers", {})
        knows_others = fs.client_kwargs or fs.encoded or fs.get_client is not get_client
        if type(fs) is not HTTPFileSystem or knows_others or ranges.has_proxy():
            return None
        if {*fs.kwargs} - {"headers"} or {*map(type, headers.values())} - {str}:
            return None
        return ranges.Client(partial(ranges.http_store, headers), is_http=True, note_age=_note_age)

    def _find_place(self, fs: Any, root: str) -> str:
        return unsigned(root)

    def may_keep(self, version: Version) -> bool:
        return version.tag not in _young

    def _address_of(self, fs: Any, path: str) -> ranges.Address | None:
        match = _PLAIN_URL.fullmatch(path)
        if match is None or not ranges.is_plain(match[2]):
            return None
        return ranges.Address(match[1], match[2])

    def _read(
        self,
        spans: Sequence[Span],
        expected: Version | None,
        *,
        clip: bool,
    ) -> tuple[list[memoryview], bool]:
        try:
            return super()._read(spans, expected, clip=clip)
        except ConflictError:
            # This request only explains the failure. If the server does not answer, the first error is raised.
            with suppress(OSError):
                if self.stamp(spans[0].name).version != self.stamp(spans[0].name).version:
                    raise ConflictError(
                        f"{where(self.url, spans[0].name)} has another ETag in each answer of its server, as if it "
                        f"changed all the time; open simplecache::{self.url} to read a copy"
                    ) from None
            raise

    def stamp(self, name: str) -> Stamp:
        return self._wait(name, self._get, 0, 1, None)[1]

    def listing(self) -> dict[str, Listed]:
        raise UnsupportedError(f"{self.url} cannot be listed")

    def walk(self) -> list[str]:
        raise UnsupportedError(f"{self.url} cannot be listed")

    async def _get(
        self,
        fs: Any,
        url: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        """Read a range of an object and the object's state; repeat the request after errors that may pass."""
        return await patiently(partial(self._ask, fs, url, start, stop, expected), _may_pass)

    async def _ask(
        self,
        fs: Any,
        url: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        from aiohttp import ClientPayloadError

        # A server that compresses would count ranges in compressed bytes.
        headers = {**fs.kwargs.get("headers", {}), "Accept-Encoding": "identity", "Range": bytes_range(start, stop)}
        if expected and _is_strong(expected):
            headers["If-Match"] = expected.tag
        session, place = await fs.set_session(), fs.encode_url(url)
        async with session.get(place, **{**fs.kwargs, "headers": headers}) as answer:
            if answer.url.path == f"{place.path}/":  # the server lists the directory
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            compressed = answer.headers.get("Content-Encoding") in _COMPRESSED
            if answer.status == 416 and match is not None and match[1] is None:
                first, total, content = start, match[2], b""
            elif answer.status == 206 and match is not None and match[1] is not None and not compressed:
                first, total, content = int(match[1]), match[2], await answer.read()
            elif start < 0:
                # Do not wait for the whole object, which a server without ranges sends.
                raise UnsupportedError(f"{self.url}: expected the last bytes, found status {answer.status}")
            elif answer.status == 200:  # a server without ranges sends the whole object
                first, content = 0, await _beginning(answer.content, stop)
                total = "*" if compressed else answer.headers.get("Content-Length", "*")
            else:
                answer.raise_for_status()
                what = {name: answer.headers.get(name) for name in ("Content-Range", "Content-Encoding")}
                raise ClientPayloadError(f"expected bytes {start} to {stop}, found status {answer.status} with {what}")
            end, size = first + len(content), -1 if total == "*" else int(total)
            if start < 0:
                if end != size or len(content) != min(-start, size):
                    raise UnsupportedError(f"{self.url}: expected the last bytes of {size}, found {first} to {end}")
                start, stop = first, end
            if first > start or end < min(stop, size):
                raise ClientPayloadError(f"expected bytes {start} to {stop} of {size}, found {first} to {end}")
            stamp = _stamp_in(answer.headers, size)
        if "If-Match" in headers and _is_strong(stamp.version) and stamp.version != expected:
            raise stale_reader(self.url)
        return content[start - first : stop - first], stamp


_young: dict[str, None] = {}
"""Entity tags of objects that were changed a moment before they were read, the last `_MOST_YOUNG` of them."""


def _stamp_in(headers: Mapping[str, str], size: int) -> Stamp:
    """Return the state of an object from the headers of an answer."""
    modified = headers.get("Last-Modified")
    stamp = stamp_of({"size": size, "ETag": headers.get("ETag"), "Last-Modified": modified})
    if modified and stamp.version:
        with suppress(ValueError):  # a time that cannot be read says nothing
            _note_age(stamp.version, parsedate_to_datetime(modified))
    return stamp


def _note_age(version: Version, modified: datetime) -> None:
    """Note whether an object may change again without a change of its entity tag.

    Common servers make the tag of the size and the time of the last change, in seconds.
    """
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=UTC)
    if datetime.now(UTC) - modified > _OLD_ENOUGH:
        _young.pop(version.tag, None)
        return
    _young[version.tag] = None
    while len(_young) > _MOST_YOUNG:
        with suppress(KeyError):  # another thread may have removed it
            del _young[next(iter(_young))]


def _answer(span: Span, content: bytes, stamp: Stamp) -> tuple[bytes, Stamp | None]:
    """Return the bytes of an answer, and the object's state if a strong entity tag tells it from other states."""
    if _is_strong(stamp.version):
        return content, stamp
    # The size is needed to compute the offset of the last bytes of an object.
    return content, stamp._replace(version=None) if span.start < 0 else None


async def _beginning(stream: Any, nbytes: int) -> bytes:
    """Read an answer until it has `nbytes` bytes, or to its end."""
    content = bytearray()
    while len(content) < nbytes:
        piece = await stream.readany()
        if not piece:
            break
        content += piece
    return bytes(content)


def _is_strong(version: Version | None) -> bool:
    """Return whether a version is a strong entity tag, which differs between any two contents."""
    return version is not None and version.tag.startswith('"')


def _may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed a moment later."""
    from aiohttp import ClientConnectorError, ClientOSError, ClientPayloadError, ServerDisconnectedError

    broken = isinstance(error, ClientPayloadError | ServerDisconnectedError | ClientOSError)
    return status_of(error) in _BUSY or (broken and not isinstance(error, ClientConnectorError))
