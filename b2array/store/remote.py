"""Stores of any fsspec protocol: object stores, HTTP servers, archives, caches."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Self, TypeVar, cast

from b2array import config, threads
from b2array.buffers import Buffer
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError
from b2array.store import ranges, through, upload
from b2array.store.base import (
    READ_ONLY,
    ContentName,
    Head,
    Listed,
    Mutex,
    Stamp,
    Store,
    Tail,
    Version,
    as_answer,
    conflict,
    merge,
    pause,
    scatter,
    stale_reader,
    too_short,
    where,
)
from b2array.store.disk_cache import DiskCache, current
from b2array.store.file_systems import FILE_SYSTEM, of_this_process, protocols, register, spell_out
from b2array.store.open import cut, join_url
from b2array.store.secrets import leaks, redact, redact_url, secrets
from b2array.store.spans import Span

__all__ = [
    "ABSENT",
    "CONNECTIONS",
    "CachingStore",
    "FsspecStore",
    "answer",
    "at_once",
    "bytes_range",
    "join",
    "patiently",
    "stamp_of",
    "status_of",
]

_T = TypeVar("_T")
_Get = Callable[[Any, str, int, int, Version | None], Awaitable[tuple[bytes, Stamp]]]

ABSENT: Final = Version("")
"""The version of an object that does not exist, as a condition for writing."""

_LARGE = 2**20
_READ_LIMIT = 16 * 2**20  # larger reads are split, because several connections are faster than one
_USUAL = (B2ArrayError, MemoryError, NotImplementedError, TypeError, ValueError)
"""Errors whose texts need no URL."""
CONNECTIONS = 8  # fewer than the S3 client has, so that no request waits for a connection
_WIDER = (2, 4, 8, 16)
"""Factors for the gaps that a request reads over. The gaps grow until all requests can be under way at once."""
_ARCHIVES = ("github", "libarchive", "reference", "tar", "zip")
_ONE_FILE = ("libarchive", "tar", "zip")
"""Archives in which all readers share one file object, so that only one thread may use it at a time.

`zipfile` has a lock for this, but on Python 3.12.1 and 3.13.0 it does not hold the lock while it seeks in a stored
member, so that threads get each other's bytes.
"""
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "VersionId",
    "Last-Modified",
    "last_modified",
    "mtime",
    "modified",
    "created",
)
_TIMES = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status in an error of aiohttp, gcsfs, obstore or Azure's client, or behind an error of s3fs."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "status_code", "code"):
            status = getattr(error, name, None)
            if isinstance(status, int):
                return status
        # The errors of gcsfs and obstore do not contain the number.
        if str(error).startswith("Forbidden") or type(error).__name__ == "PermissionDeniedError":
            return 403
        error = error.__cause__
    return None


def _reason(error: Exception) -> Exception:
    """Return the cause of a FileNotFoundError, because the HTTP file system raises this error for any failure."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        return error if isinstance(cause, KeyError | FileNotFoundError) or status_of(cause) == 404 else cause
    return error


_archives = Mutex()
_S = TypeVar("_S", bound="FsspecStore")


def _with_url(
    kind: type[_S],
    address: str,
    options: Mapping[str, Any],
    alias: str | None,
) -> _S:
    """Return the store of an address; with an `alias`, messages show this URL instead."""
    store = kind(address, options)
    if alias is not None:
        store.url = alias
    return store


class FsspecStore(Store):
    """An object or a prefix in a file system of fsspec.

    The URL may be a chain, and may have a query string; names of objects are added before the query. The options are
    for `fsspec.core.url_to_fs`, or contain the file system (`FILE_SYSTEM`) in which the URL names a path.
    """

    _serves_ends = False
    """Whether `_answers` accepts a span that starts at -n, for the last n bytes of an object."""

    _ident = ""
    """A text that is equal for stores of the same objects; empty if the states of an object cannot be distinguished."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = redact_url(url)
        self.is_prefix = True if url.partition("::")[0].partition("?")[0].endswith("/") else None
        self._address = url
        self._options = dict(storage_options)
        self._secrets = secrets(url, spell_out(self._options))
        self._connection: tuple[int, Any, str] | None = None
        self._place: str | None = None
        fs = self._options.get(FILE_SYSTEM)
        if fs is not None:
            register(fs)
        self._links = protocols(fs) if fs is not None else [link.partition("://")[0] for link in url.split("::")]
        if self._links[0] in _ARCHIVES:
            self.can = READ_ONLY
        self._in_one_file = any(link in _ONE_FILE for link in self._links)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def connections(self) -> int:
        """The number of requests of a read that are under way at the same time."""
        return CONNECTIONS

    def __reduce__(self) -> tuple[Any, ...]:
        alias = None if self.url == redact_url(self._address) else self.url
        return _with_url, (type(self), self._address, self._options, alias)

    def around(self, path: str) -> Callable[[str], Store] | None:
        front, base, back = cut(self._address)
        if base != path and not base.endswith(f"/{path}"):
            return None
        outer = base.removesuffix(path).rstrip("/")
        address = f"{front}{outer}{back}"
        return lambda inner: type(self)(join_url(address, inner) if inner else address, self._options)

    def below(self, path: str, *, shown_as: str | None = None) -> Self:
        if not path:
            return self
        alias = None if shown_as is None else redact_url(join_url(self._address, shown_as))
        return _with_url(type(self), join_url(self._address, path), self._options, alias)

    def _connect(self) -> tuple[Any, str]:
        """Return the file system, and the root of the store in it; connect again in a forked child."""
        connection = self._connection
        if connection is None or connection[0] != os.getpid():
            own = self._options.get(FILE_SYSTEM)
            if own is None:
                from fsspec.core import url_to_fs

                fs, root = url_to_fs(self._address, **self._options)
            else:
                fs = of_this_process(own)
                root = fs._strip_protocol(self._address)
            connection = self._connection = (os.getpid(), fs, root)
            register(fs)
        return connection[1:]

    def _call(self, name: str, function: Callable[[Any, str], _T]) -> _T:
        """Call ``function(file system, path)`` for an object, and translate fsspec's errors into this package's."""
        try:
            with _archives.held if self._in_one_file else nullcontext():
                fs, root = self._connect()
                return function(fs, join(root, name))
        except Exception as error:  # noqa: BLE001 - raised below, where no context keeps its text
            failure = self._translate(error, name)
        try:
            raise failure
        finally:
            # The traceback of the error refers to this stack frame: without `del`, they would keep each other alive.
            del failure

    def _wait(self, name: str, request: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        """Send a request about an object, and wait for the answer."""
        return self._call(name, lambda fs, path: answer(fs.loop, partial(request, fs, path, *args)))

    def _translate(self, error: Exception, name: str) -> Exception:
        place = where(self.url, name)
        error = _reason(error)
        status = status_of(error)
        if isinstance(error, FileNotFoundError) or status == 404:
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
        if isinstance(error, FileExistsError):
            return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)
        if status == 412:
            return conflict(place)
        if status == 416:
            return FormatError(f"{place}: expected more bytes, found the end")
        return self._os_error(error, status, place)

    def _os_error(self, error: Exception, status: int | None, place: str) -> Exception:
        """Return an error that names the place and shows no secret; an `OSError` instead of the error of a client."""
        hidden = leaks(error, self._secrets)
        if isinstance(error, _USUAL) and not hidden:
            return error
        forbidden = status in (401, 403) or isinstance(error, PermissionError)
        kind: type[OSError] = OSError
        if forbidden:
            kind = PermissionError
        elif isinstance(error, TimeoutError):
            kind = TimeoutError
        if isinstance(error, OSError) and type(error).__module__ == "builtins":
            if not hidden and (not forbidden or kind is type(error)) and self.url.rstrip("/") in str(error):
                return error
            kind = kind if forbidden else type(error)
        number = errno.EACCES if forbidden else getattr(error, "errno", None)
        says = getattr(error, "strerror", None) or str(error) or str(error.__cause__ or "") or type(error).__name__
        text = f"{place}: {redact(says, self._secrets)}"
        failure = kind(text) if number is None else kind(number, text)
        if not hidden:
            failure.__cause__ = error
        return failure

    def read(
        self,
        spans: Sequence[Span],
        *,
        expected: Version | None = None,
        clip: bool = False,
    ) -> list[memoryview]:
        views, _ = self._read(spans, expected, clip=clip)
        return views

    def _read(
        self,
        spans: Sequence[Span],
        expected: Version | None,
        *,
        clip: bool,
    ) -> tuple[list[memoryview], bool]:
        """Do the same as `read`; also return whether each answer says that it is of the expected version, if any."""
        merged = merge(self.url, spans, _READ_LIMIT)
        for wider in _WIDER:
            if len(merged) == 1 or len(merged) <= self.connections:
                break
            merged = merge(self.url, spans, _READ_LIMIT, gap=wider * config.coalesce_gap)
        filled = [each.span for each in merged if each.span.start < each.span.stop]
        answers = self._ranges(filled, expected)[::-1] if filled else []
        is_sure = expected is None or all(_tag_in(each) == expected.tag for each in answers)
        try:
            # Drop each answer after its copy, so that only one answer is in memory twice.
            by_span = {span: self._fit(span, answers.pop(), clip=clip) for span in filled}
        except ConflictError:
            raise stale_reader(where(self.url, filled[0].name)) from None
        views = scatter(spans, merged, (by_span.get(each.span, memoryview(b"")) for each in merged))
        return views, is_sure

    def _ranges(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        """Return an error for each span, or its bytes and the object's state; None for a state that was not sent."""
        try:
            answers = self._answers(spans, expected)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            answers = [error] * len(spans)
        return [as_answer(each) if isinstance(each, Exception) else each for each in answers]

    def _answers(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:  # noqa: ARG002
        # Make fsspec return errors: a raised error would not name its object.
        names, starts, stops = ([*column] for column in zip(*spans, strict=True))

        def request(fs: Any, _: str) -> list[Any]:
            paths = [join(self._connect()[1], name) for name in names]
            answers = fs.cat_ranges(paths, starts, stops, on_error="return")
            return [each if isinstance(each, Exception) else (each, None) for each in answers]

        return self._call(names[0], request)

    def _get_each(self, get: _Get, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        """Do the same as `_answers` by a request for each span: through obstore, or by `get` where it has no answer."""
        answers = self._through_obstore(spans, expected)
        left = [n for n, each in enumerate(answers) if each is None]
        if left:
            others = self._send_each(get, [spans[n] for n in left], expected)
            for n, other in zip(left, others, strict=True):
                answers[n] = other
        return answers

    def _through_obstore(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        """Request spans through obstore; return its answers, and None for each span that it cannot read."""

        def ask(fs: Any, _: str) -> list[Any]:
            client = self._range_client(fs)
            if client is None:
                return [None] * len(spans)
            root = self._connect()[1]
            names = {span.name for span in spans}
            addresses = {name: self._address_of(fs, join(root, name)) for name in names}
            plain = [address for span in spans if (address := addresses[span.name]) is not None]
            if len(plain) < len(spans):
                return [None] * len(spans)
            return client.get(plain, spans, expected)

        return self._call(spans[0].name, ask)

    def _range_client(self, fs: Any) -> ranges.Client | None:
        """Return the client of obstore that sends the requests of the file system in its place; None without one."""
        return ranges.client_of(fs, partial(self._describe, fs)) if ranges.is_possible() else None

    def _describe(self, fs: Any) -> ranges.Client | None:  # noqa: ARG002
        """Make the client of obstore for a file system; None if obstore does not support one of its options."""
        return None

    def _address_of(self, fs: Any, path: str) -> ranges.Address | None:  # noqa: ARG002
        """Return the address of an object for obstore; None if two clients might write its URL in different ways."""
        return None

    def _send_each(self, get: _Get, spans: Sequence[Span], expected: Version | None) -> list[Any]:
        def send(fs: Any, _: str) -> Awaitable[list[Any]]:
            root = self._connect()[1]
            return at_once(
                (get(fs, join(root, name), start, stop, expected) for name, start, stop in spans), self.connections
            )

        return self._wait(spans[0].name, send)

    def _fit(
        self,
        span: Span,
        answer: tuple[bytes, Stamp | None] | Exception,
        *,
        clip: bool,
    ) -> memoryview:
        """Check an answer, and return the bytes of its span; with `clip`, fewer at the end of the object."""
        if isinstance(answer, Exception):
            failure, answer = self._translate(answer, span.name), (b"", None)
            try:
                if not isinstance(failure, FormatError):
                    raise failure
            finally:
                # As in `_call`.
                del failure
        content, state = answer
        wanted = span.stop - span.start
        place = where(self.url, span.name)
        # A server without ranges sends the whole object.
        if len(content) > wanted:
            content = content[span.start : span.stop]
        if state is not None and len(content) < min(wanted, state.size - span.start):
            raise OSError(
                f"{place}: expected {wanted} bytes at {span.start}, found {len(content)}: the answer is incomplete"
            )
        if len(content) != wanted and not clip:
            raise too_short(place, span.start, span.stop, len(content))
        # A copy would be writable, but allocating memory of this size is slow.
        return memoryview(content if len(content) >= _LARGE else bytearray(content))

    def head(
        self,
        names: Sequence[str],
        nbytes: int,
        *,
        offset: int = 0,
    ) -> list[Head | Exception]:
        spans = [Span(name, offset, offset + nbytes) for name in names]
        return [self._head(span, answer) for span, answer in zip(spans, self._ranges(spans, None), strict=True)]

    def ends(
        self,
        names: Sequence[str],
        nbytes: int,
        last: int,
    ) -> tuple[list[Head | Exception], Tail | None]:
        if not self._serves_ends:
            return self.head(names, nbytes), None
        spans = [Span(name, 0, nbytes) for name in names]
        *answers, end = self._ranges([*spans, Span(names[0], -last, 0)], None)
        heads = [self._head(span, answer) for span, answer in zip(spans, answers, strict=True)]
        return heads, _tail(end)

    def _head(self, span: Span, answer: Any) -> Head | Exception:
        try:
            data = self._fit(span, answer, clip=True)
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return as_answer(error)
        stamp = None if isinstance(answer, Exception) else answer[1]
        version = self._ident and stamp and stamp.version
        return Head(data, stamp, f"{self._ident}/{span.name} {version}" if version else "")

    # The cache on disk.

    def _disk_cache(self) -> DiskCache | None:
        """Return the cache on disk, if there is one, and if this store's server tells the versions of its objects."""
        if config.disk_cache is None:
            return None
        if self._place is None:
            # If the store cannot connect, the read itself raises the error.
            with suppress(Exception):
                self._place = self._call("", self._find_place)
        return current() if self._place else None

    def _find_place(self, fs: Any, root: str) -> str:  # noqa: ARG002
        """Return the server and the root of the store as text without secrets; empty if objects have no versions."""
        return ""

    @property
    def disk_cache(self) -> str | None:
        cache = self._disk_cache()
        return None if cache is None else cache.directory

    def may_keep(self, version: Version) -> bool:  # noqa: ARG002
        return True

    def read_through(
        self,
        spans: Sequence[Span],
        contents: Sequence[ContentName | None],
        *,
        expected: Version | None = None,
        clip: bool = False,
        split: through.Split | None = None,
    ) -> list[memoryview]:
        cache = self._disk_cache()
        if cache is None or not any(contents):
            return self.read(spans, expected=expected, clip=clip)
        fetch = partial(self._read, expected=expected, clip=clip)
        return through.read(cache, self._place or "", spans, contents, fetch, clip=clip, split=split)

    def find_on_disk(
        self,
        spans: Sequence[Span],
        contents: Sequence[ContentName | None],
    ) -> list[memoryview] | None:
        cache = self._disk_cache()
        if cache is None:
            return None
        return through.find(cache, self._place or "", spans, contents)

    def has_copy(self, name: str, nbytes: int) -> bool:
        cache = self._disk_cache()
        return cache is not None and through.has_copy(cache, self._place or "", Span(name, 0, nbytes))

    def not_on_disk(self, spans: Sequence[Span], contents: Sequence[ContentName | None]) -> tuple[list[Span], int]:
        cache = self._disk_cache()
        if cache is None:
            return super().not_on_disk(spans, contents)
        return through.lacking(cache, self._place or "", spans, contents)

    def forget(self, spans: Sequence[Span], contents: Sequence[ContentName | None]) -> bool:
        cache = self._disk_cache()
        if cache is None:
            return False
        return through.forget(cache, self._place or "", spans, contents)

    def ends_through(
        self,
        names: Sequence[str],
        nbytes: int,
        last: int = 0,
        *,
        offset: int = 0,
        accepts: Callable[[Version], bool] | None = None,
    ) -> tuple[list[Head | Exception], Tail | None]:
        cache = self._disk_cache()
        if cache is None:
            return super().ends_through(names, nbytes, last, offset=offset)
        place = self._place or ""
        spans = [Span(name, offset, offset + nbytes) for name in names]
        has_tail = bool(last) and not offset and self._serves_ends
        if has_tail:
            spans.append(Span(names[0], -last, 0))
        answers = through.read_present(cache, place, spans, self._fetch_present, self.may_keep, accepts)
        end = answers.pop() if has_tail else None
        heads = [self._head(span, answer) for span, answer in zip(spans[: len(names)], answers, strict=True)]
        return heads, None if end is None else _tail(end)

    def _fetch_present(self, spans: Sequence[Span]) -> list[Any]:
        """Do the same as `_ranges` for the present states of objects, perhaps of none."""
        return self._ranges(spans, None) if spans else []

    def stamp(self, name: str) -> Stamp:
        return self._call(name, lambda fs, path: stamp_of(fs.info(path)))

    def listing(self) -> dict[str, Listed]:

        def ask(fs: Any, root: str) -> dict[str, Listed]:
            fs.invalidate_cache(root)
            files = [info for info in self._list(fs, "ls", root, detail=True) if info["type"] == "file"]
            return {_name(info["name"], root): Listed(info["size"], _modification_time(info)) for info in files}

        return self._call("", ask)

    def walk(self) -> list[str]:

        def ask(fs: Any, root: str) -> list[str]:
            fs.invalidate_cache()
            start = root.strip("/") + "/" if root.strip("/") else ""
            paths = (str(path).lstrip("/") for path in self._list(fs, "find", root))
            return sorted(path.removeprefix(start) for path in paths if path.startswith(start))

        return self._call("", ask)

    def _list(self, fs: Any, verb: str, root: str, **options: Any) -> Iterable[Any]:
        """Call a method of the file system that lists, and return its entries."""
        entries: Iterable[Any] = getattr(fs, verb)(root, **options)
        return entries

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        self._require_writable()
        content = upload.split(data)
        try:
            return self._write(name, content, ABSENT)
        except ConflictError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where(self.url, name)) from None

    def replace(
        self,
        name: str,
        data: Buffer | Iterable[Buffer],
        *,
        expected: Version | None = None,
    ) -> Stamp:
        if expected is not None and self._version(name) != expected:
            raise conflict(where(self.url, name))
        self._require_writable()
        return self._write(name, upload.split(data), None)

    def _write(
        self,
        name: str,
        content: bytes | Iterator[bytes],
        expected: Version | None,
    ) -> Stamp:
        """Write an object that replaces the `expected` version, any version (None), or no object (`ABSENT`)."""
        if isinstance(content, bytes):
            return self._put(name, content, expected)
        if expected == ABSENT and self._version(name) != ABSENT:
            raise conflict(where(self.url, name))
        return self._put_parts(name, content, expected)

    def _put(self, name: str, content: bytes, expected: Version | None) -> Stamp:
        options = {"mode": "create"} if expected == ABSENT else {}
        self._call(name, lambda fs, path: upload.in_directory(fs, path, lambda: fs.pipe_file(path, content, **options)))
        return self.stamp(name)

    def _put_parts(
        self,
        name: str,
        parts: Iterator[bytes],
        expected: Version | None,  # noqa: ARG002
    ) -> Stamp:
        # Make the parts outside `_call`, which would translate the errors of their source.
        file = self._call(name, upload.begin)
        try:
            for part in parts:
                self._call(name, lambda *_, part=part: file.write(part))
            self._call(name, partial(upload.finish, file=file))
        except BaseException:
            # Clients raise errors of many kinds when they clean up; the error of the upload itself is more informative.
            with suppress(Exception):
                upload.abort(file)
            raise
        return self.stamp(name)

    def _version(self, name: str) -> Version | None:
        try:
            return self.stamp(name).version
        except FileNotFoundError:
            return ABSENT

    def _require_writable(self) -> None:
        if not self.can.write:
            raise ReadOnlyError(f"{self.url} can only be read: its protocol cannot write")

    def delete(self, names: Iterable[str]) -> None:
        self._require_writable()
        for name in names:
            try:
                self._call(name, lambda fs, path: fs.rm_file(path))
            except FileNotFoundError:
                continue

    def close(self) -> None:
        self._connection = None


_caching = Mutex()


class CachingStore(FsspecStore):
    """An object or prefix that fsspec copies to the local disk for the first read. Read-only.

    fsspec fills the files of its cache in place, where other readers see them, and leaves them unfinished if another
    file of the same batch fails. So only one read is under way at a time, and it copies one object after another
    (several in threads with ``simplecache``). The store removes the copy of an object that could not be read.

    A writer would compare its changes with the cached index, and miss the commits of other writers.
    """

    can = READ_ONLY

    def _ranges(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:  # noqa: ARG002
        parallel = CONNECTIONS if self._links[0] == "simplecache" else 1
        groups = [[*group] for _, group in itertools.groupby(spans, key=lambda span: span.name)]
        with _caching.held:
            # In separate threads, so that after Ctrl-C the lock is held until fsspec has filled its file.
            return [*itertools.chain(*threads.ahead(self._read_copy, groups, min(parallel, len(groups)), apart=True))]

    def _answers(self, spans: Sequence[Span], expected: Version | None) -> list[Any]:  # noqa: ARG002
        # With `cat_ranges`, ``simplecache`` of many versions of fsspec copies nothing.
        def request(fs: Any, path: str) -> list[Any]:
            return [(fs.cat_file(path, start=span.start, end=span.stop), None) for span in spans]

        return self._call(spans[0].name, request)

    def _read_copy(self, spans: Sequence[Span]) -> list[Any]:
        answers, name = super()._ranges(spans, None), spans[0].name
        if any(isinstance(each, Exception) for each in answers):
            # The copy may not exist, and file systems differ in where they keep it. If it stays, the next read fails.
            with suppress(Exception):
                fs, root = self._connect()
                os.unlink(os.path.join(fs.storage[-1], fs.hash_name(fs._strip_protocol(join(root, name)))))
            if isinstance(answers[0], FileNotFoundError):
                try:
                    self.stamp(name)
                except Exception as error:  # noqa: BLE001 - ``filecache`` hides it
                    return [error] * len(spans)
        return answers


def answer(loop: asyncio.AbstractEventLoop | None, request: Callable[[], Awaitable[_T]]) -> _T:
    """Send a request in the event loop of fsspec's clients, and return the answer.

    This replaces `fsspec.asyn.sync`, which waits for an event: after Ctrl-C the event's lock may stay taken, and then
    the loop waits for ever.
    """
    if loop is None or asyncio._get_running_loop() is loop:
        raise RuntimeError("expected clients of fsspec with a loop in another thread, found it in this one, or none")
    if threads.is_ending():
        raise threads.make_ending_error()
    queue: threads.Answer[_T] = SimpleQueue()

    async def ask() -> None:
        try:
            queue.put((await request(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            queue.put((cast(_T, None), error))

    asyncio.run_coroutine_threadsafe(ask(), loop)
    return threads.result(queue)


async def at_once(requests: Iterable[Awaitable[_T]], most: int = CONNECTIONS) -> list[_T | BaseException]:
    """Send requests, at most `most` at a time, and return their answers; a failed request is answered by its error."""
    limit = asyncio.Semaphore(most)

    async def limited(request: Awaitable[_T]) -> _T:
        async with limit:
            return await request

    return await asyncio.gather(*map(limited, requests), return_exceptions=True)


async def patiently(request: Callable[[], Awaitable[_T]], may_pass: Callable[[Exception], bool]) -> _T:
    """Send a request; after an error that may pass, send it again, up to `config.retries` times."""
    attempt = 1
    while True:
        try:
            return await request()
        except Exception as error:
            if attempt > config.retries or not may_pass(error):
                raise
        attempt += 1
        await asyncio.sleep(pause(attempt + 1))


def bytes_range(start: int, stop: int) -> str:
    """Return the header ``Range`` for a span. A start of -n means the last n bytes.

    Examples
    --------
    >>> bytes_range(0, 10), bytes_range(-10, 0)
    ('bytes=0-9', 'bytes=-10')
    """
    return f"bytes={start}" if start < 0 else f"bytes={start}-{stop - 1}"


def join(root: str, name: str) -> str:
    """Return the address of an object: the root of the store, the name, and then the query of the root."""
    return join_url(root, name) if name else root


def _tag_in(answer: Any) -> str | None:
    """Return the tag of the object's version in an answer; None for an error, and for a version that was not sent."""
    if isinstance(answer, Exception):
        return None
    _, state = answer
    return None if state is None or state.version is None else state.version.tag


def _tail(answer: Any) -> Tail | None:
    """Return the tail in an answer; None for an error."""
    if isinstance(answer, Exception):
        return None
    content, state = answer
    return Tail(memoryview(content), state.size - len(content), state.version)


def _name(path: str, root: str) -> str:
    return "" if path.strip("/") == root.strip("/") else path.rpartition("/")[2]


def stamp_of(info: Mapping[str, Any]) -> Stamp:
    """Return the state of an object from the description that a file system gives of it."""
    size = info.get("size")
    tag = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return Stamp(-1 if size is None else size, Version(tag if tag.startswith('"') else f"{tag}:{size}"))


def _modification_time(info: Mapping[str, Any]) -> float | None:
    value = next((info[key] for key in _TIMES if info.get(key)), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        value = value.timestamp()
    return value if isinstance(value, float | int) else None
