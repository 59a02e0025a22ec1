"""Stores on S3, Google Cloud Storage and Azure through obstore, for users of its file systems for fsspec.

These file systems cannot send conditional requests, and do not return the state of an object that they read. So the
requests here go to the object stores of obstore directly.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from b2array import config
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.store import ranges
from b2array.store.base import Capabilities, Listed, Stamp, Version, conflict, where
from b2array.store.cloud import ABSENT, CloudStore, remove_each
from b2array.store.file_systems import FILE_SYSTEM, spell_out
from b2array.store.secrets import public
from b2array.store.upload import PART

__all__ = ["ObstoreStore"]

_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|[Tt]he specified (bucket|container) does not exist")
_BEYOND = re.compile(r"NotPartial|Wanted range starting at")
_OF_PLACE = re.compile("^(AWS|AZURE|GOOGLE)_.*(ENDPOINT|ACCOUNT|URL)", re.IGNORECASE)
_PROTOCOLS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "azure": "azure",
    "http": "http",
    "https": "http",
}
_LIMITS = {"s3": 5 * 2**30, "gcs": 5 * 2**40, "azure": 5000 * 2**20, "http": 0}


class _Runtime:
    """The process in which obstore's threads run. A forked child has no such threads, and would wait for ever."""

    process: ClassVar[int | None] = None


class ObstoreStore(CloudStore):
    """An object or prefix in a bucket that obstore reaches. HTTP servers are read-only.

    A conditional write is one request, for which the whole content is in memory.
    """

    uploads = 4

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        super().__init__(url, {FILE_SYSTEM: _file_system(url, storage_options)})
        fs = self._options[FILE_SYSTEM]
        if fs.protocol not in _PROTOCOLS:
            raise UnsupportedError(f"{self.url}: obstore is used for s3, gs, az and http, not for {fs.protocol!r}")
        self._cloud = _PROTOCOLS[fs.protocol]
        self._tag = "version" if self._cloud == "gcs" else "e_tag"
        self.put_limit = _LIMITS[self._cloud]  # type: ignore[misc]
        is_http = self._cloud == "http"
        self.can = Capabilities(write=False, lists=False) if is_http else Capabilities(compare=True)
        self._serves_ends = self._cloud != "azure"

    @property
    def connections(self) -> int:
        """The number of concurrent requests, which the client allows."""
        return 32

    def _connect(self) -> tuple[Any, str]:
        fs = self._options[FILE_SYSTEM]
        if _Runtime.process not in (None, os.getpid()) or fs._pid != os.getpid():
            raise UnsupportedError(
                f"{self.url}: obstore does not work in a forked process; start processes with 'spawn' or 'forkserver'"
            )
        _Runtime.process = os.getpid()
        bucket, key = fs._split_path(self._address)
        path = f"{bucket}/{key}"
        if self._cloud != "http":
            # `_split_path` ends the key at "#" and "?", which are letters in the names of objects.
            path = self._address.removeprefix(f"{fs.protocol}://")
        return fs, path.rstrip("/")

    def _find_place(self, fs: Any, root: str) -> str:
        if self._cloud == "http":
            # Unlike `HttpStore`, this store does not know whether entity tags are strong.
            return ""
        # The account and the endpoint may be in the options or in the environment.
        around = {name: value for name, value in os.environ.items() if _OF_PLACE.search(name)}
        return f"{fs.protocol} {public(spell_out(self._options))} {public(around)} {root}"

    def _range_client(self, fs: Any) -> ranges.Client | None:
        return ranges.client_of(fs, partial(self._describe, fs)) if config.obstore else None

    def _describe(self, fs: Any) -> ranges.Client:
        conditional, is_http = self._cloud != "gcs", self._cloud == "http"
        return ranges.Client(fs._construct_store, self._tag, conditional, is_http, is_alone=True)

    def _address_of(self, fs: Any, path: str) -> ranges.Address | None:
        bucket, _, key = path.partition("/")
        return ranges.Address(bucket, key) if key else None

    def _is_busy(self, error: Exception) -> bool:
        # Azure answers with the same status if the object exists.
        text = str(error)
        match = _STATUS.search(text)
        return match is not None and match[1] == "409" and "BlobAlreadyExists" not in text

    def _is_worth_repeating(self, error: Exception, expected: Version | None) -> bool:
        # obstore itself repeats a request that replaces an object on S3.
        is_repeated = self._cloud == "s3" and expected != ABSENT
        return self._is_busy(error) and not is_repeated

    def _translate(self, error: Exception, name: str) -> Exception:
        place, text = where(self.url, name), str(error)
        if isinstance(error, UnsupportedError) or self._is_busy(error):
            return super()._translate(error, name)
        kind = type(error).__name__
        match = _STATUS.search(text)
        status = int(match[1]) if match else None
        if _NO_BUCKET.search(text):
            _, root = self._connect()
            return FileNotFoundError(errno.ENOENT, f"there is no bucket {root.partition('/')[0]!r}", place)
        if kind in ("AlreadyExistsError", "PreconditionError"):
            return conflict(place)
        if status == 416 or _BEYOND.search(text):
            return FormatError(f"{place}: expected more bytes, found the end")
        if kind in ("PermissionDeniedError", "UnauthenticatedError") and status is None:
            status = 403
        if kind.endswith("Error") and type(error).__module__.startswith("obstore"):
            return self._os_error(OSError(text.partition("\n")[0]), status, place)
        return super()._translate(error, name)

    async def _get(
        self,
        fs: Any,
        path: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[Any, Stamp]:
        store, key = _place(fs, path)
        asked: dict[str, Any] = {"range": {"suffix": -start} if start < 0 else (start, stop)}
        if expected is not None and self._cloud != "gcs":
            asked["if_match"] = expected.tag
        answer = await store.get_async(key, options=asked)
        stamp = self._stamp_of(answer.meta)
        if expected is not None and stamp.version != expected:
            raise conflict(path)
        return await answer.bytes_async(), stamp

    async def _list_one(self, fs: Any, path: str) -> None:
        store, key = _place(fs, path)
        try:
            await store.list_with_delimiter_async(key)
        except Exception as error:
            status = _STATUS.search(str(error))
            if status is None or status[1] != "403":
                raise
            raise OSError(f"Forbidden: {path}") from error

    async def _ask(self, fs: Any, path: str) -> Stamp:
        store, key = _place(fs, path)
        return self._stamp_of(await store.head_async(key))

    def _stamp_of(self, meta: Mapping[str, Any]) -> Stamp:
        tag = meta[self._tag]  # an HTTP server may send none
        return Stamp(meta["size"], Version(tag) if tag else None)

    async def _send(
        self,
        fs: Any,
        path: str,
        content: bytes | bytearray,
        expected: Version | None,
    ) -> Version:
        store, key = _place(fs, path)
        mode: Any = "overwrite"
        if expected == ABSENT:
            mode = "create"
        elif expected is not None:
            mode = {self._tag: expected.tag}
        answer = await store.put_async(key, content, mode=mode, use_multipart=False)
        return Version(answer[self._tag] or "")

    def _put_parts(
        self,
        name: str,
        parts: Iterator[bytes],
        expected: Version | None,
    ) -> Stamp:
        if expected is not None:  # obstore has no condition for an upload in parts
            return self._put(name, self._collect(name, parts), expected)
        failures: list[BaseException] = []

        def note_failures() -> Iterator[bytes]:
            try:
                yield from parts
            except BaseException as error:
                failures.append(error)
                raise

        def put(fs: Any, path: str) -> Any:
            store, key = _place(fs, path)
            return store.put(
                key,
                note_failures(),
                use_multipart=True,
                chunk_size=PART,
                max_concurrency=self.uploads,
            )

        try:
            self._call(name, put)
        except Exception:
            if failures:
                raise failures[0] from None
            raise
        self._forget(name)
        return self.stamp(name)

    def _collect(self, name: str, parts: Iterator[bytes]) -> bytearray:
        """Join the parts of an object; raise LimitError if they are too large for one request."""
        content = bytearray()
        for part in parts:
            content += part
            if len(content) > self.put_limit:
                place = where(self.url, name)
                raise LimitError(f"{place}: {len(content)} bytes or more are too many to make an object in one request")
        return content

    async def _begin(self, fs: Any, path: str, expected: Version | None) -> Any:
        raise NotImplementedError("obstore itself divides an upload")

    async def _send_part(self, fs: Any, path: str, begun: Any, part: Any) -> Any:
        raise NotImplementedError("obstore itself divides an upload")

    async def _finish(
        self,
        fs: Any,
        path: str,
        begun: Any,
        sent: list[Any],
        expected: Version | None,
    ) -> Version:
        raise NotImplementedError("obstore itself divides an upload")

    async def _abort(self, fs: Any, path: str, begun: Any) -> None:
        raise NotImplementedError("obstore itself divides an upload")

    async def _remove(self, fs: Any, paths: Sequence[str]) -> None:
        await remove_each(store.delete_async(key) for store, key in (_place(fs, path) for path in paths))

    def listing(self) -> dict[str, Listed]:
        async def ask(fs: Any, root: str) -> dict[str, Listed]:
            store, key = _place(fs, root)
            objects = (await store.list_with_delimiter_async(key or None))["objects"]
            if not objects and key:
                head = await store.head_async(key)
                return {"": Listed(head["size"], head["last_modified"].timestamp())}
            names = ((each["path"].rpartition("/")[2], each) for each in objects)
            return {name: Listed(each["size"], each["last_modified"].timestamp()) for name, each in names}

        return self._wait("", ask)

    def walk(self) -> list[str]:
        async def ask(fs: Any, root: str) -> list[str]:
            store, key = _place(fs, root)
            objects = await store.list(key or None).collect_async()
            return sorted(each["path"].removeprefix(f"{key}/") for each in objects if each["path"] != key)

        return self._wait("", ask)


def _file_system(url: str, storage_options: Mapping[str, Any]) -> Any:
    """Return a file system of a class that can be pickled, unlike the classes that `obstore.fsspec.register` makes."""
    from obstore.fsspec import FsspecStore

    make: Any = FsspecStore  # its types name the options of each protocol
    fs = storage_options.get(FILE_SYSTEM)
    if fs is None:
        return make(url.partition("://")[0], **storage_options)
    if type(fs).__module__ == "obstore.fsspec" and type(fs) is not FsspecStore:
        return make(fs.protocol, *fs.storage_args, **fs.storage_options)
    return fs


def _place(fs: Any, path: str) -> tuple[Any, str]:
    bucket, _, key = path.partition("/")
    return fs._construct_store(bucket), key
