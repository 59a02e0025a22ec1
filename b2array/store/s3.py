"""Stores on S3 and on servers with its protocol. Commits are conditional requests."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from types import NoneType
from typing import Any

from b2array.buffers import Buffer
from b2array.errors import LimitError, UnsupportedError
from b2array.store.base import COMPARE_AND_SWAP, Head, Stamp, conflict, join_pieces, where
from b2array.store.remote import CONNECTIONS, FsspecStore, join
from b2array.store.spans import Span

__all__ = ["S3Store"]

_UPLOADS = 4  # parts of an object that are sent at the same time
_PUT_LIMIT = 5 * 2**30  # bytes that one request can write
_DELETE_LIMIT = 1000  # keys that one request can delete
_HIDING = os.urandom(16)  # without it, somebody could find a short password by trying


class S3Store(FsspecStore):
    """An object or prefix in a bucket of S3, or of another server that honours ``If-Match``.

    It needs no permission to list. It creates and replaces by conditional requests, so that no update is lost.
    """

    guarantee = COMPARE_AND_SWAP

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        super().__init__(url, storage_options)
        # Equal stores share what is cached. Stores whose options are not plain are never known to be equal.
        asked = repr((url, sorted(self._options.items()))) if _plain(self._options) else os.urandom(16).hex()
        self._ident = blake2b(asked.encode(), key=_HIDING, digest_size=16).hexdigest()

    def _request(self, name: str, method: str, **parameters: Any) -> tuple[Any, bytes]:
        """Call a method of S3 on an object; return the response and its body."""
        from fsspec.asyn import sync

        def request(fs: Any, path: str) -> tuple[Any, bytes]:
            bucket, key, version = fs.split_path(path)
            if version is not None:
                parameters["VersionId"] = version
            response = fs.call_s3(method, Bucket=bucket, Key=key, **parameters)
            body = response.get("Body")
            if body is None:
                return response, b""
            try:
                return response, sync(fs.loop, body.read)
            finally:
                fs.loop.call_soon_threadsafe(body.close)

        return self._call(name, request)

    def _get_all(self, spans: Sequence[Span], expected: str | None = None) -> list[tuple[Any, bytes] | Exception]:
        """Read ranges of objects, some at the same time; return each response with its body."""
        from fsspec.asyn import sync

        condition = {} if expected is None else {"IfMatch": expected}
        limit = asyncio.Semaphore(CONNECTIONS)

        async def get(fs: Any, root: str, span: Span) -> tuple[Any, bytes] | Exception:
            try:
                bucket, key, version = fs.split_path(join(root, span.name))
                where = {"Bucket": bucket, "Key": key, **({} if version is None else {"VersionId": version})}
                part = f"bytes={span.start}-{span.stop - 1}"
                async with limit:
                    response = await fs._call_s3("get_object", **where, Range=part, **condition)
                    async with response["Body"] as body:
                        return response, await body.read()
            except Exception as error:  # noqa: BLE001 - the caller judges it
                return self._translate(error, span.name)

        async def get_all(fs: Any, root: str) -> list[tuple[Any, bytes] | Exception]:
            return await asyncio.gather(*(get(fs, root, span) for span in spans))

        found: list[tuple[Any, bytes] | Exception]
        found = self._call(spans[0].name, lambda fs, _: sync(fs.loop, get_all, fs, self._connect()[1]))
        return found

    def _ranges(self, spans: Sequence[Span], expected: str | None) -> list[Any]:
        if expected is None:
            return super()._ranges(spans, None)
        return [found if isinstance(found, Exception) else found[1] for found in self._get_all(spans, expected)]

    def head(self, names: Sequence[str], nbytes: int, *, offset: int = 0) -> list[Head | Exception]:
        spans = [Span(name, offset, offset + nbytes) for name in names]
        return [
            self._head(span, found) if isinstance(found, Exception) else self._head_of_response(span.name, *found)
            for span, found in zip(spans, self._get_all(spans), strict=True)
        ]

    def _head_of_response(self, name: str, response: Any, data: bytes) -> Head:
        found = response.get("ContentRange", "").rpartition("/")[2]
        stamp = Stamp(int(found or response["ContentLength"]), response["ETag"])
        return Head(memoryview(bytearray(data)), stamp, f"{self._ident}/{name} {stamp.version}")

    def stamp(self, name: str) -> Stamp:
        response, _ = self._request(name, "head_object")
        return Stamp(response["ContentLength"], response["ETag"])

    def _require_conditions(self, fs: Any) -> None:
        fs.connect()
        model = fs.s3.meta.service_model
        known = (model.operation_model(name).input_shape.members for name in ("PutObject", "CompleteMultipartUpload"))
        if not all({"IfMatch", "IfNoneMatch"} <= members.keys() for members in known):
            raise UnsupportedError("safe writing to S3 needs botocore 1.35.70 or later")

    def create(self, name: str, data: Buffer | Iterable[Buffer]) -> Stamp:
        self._call(name, lambda fs, _: self._require_conditions(fs))
        return super().create(name, data)

    def replace(self, name: str, data: Buffer | Iterable[Buffer], *, expected: str | None = None) -> Stamp:
        if expected is None:
            return super().replace(name, data)
        content = join_pieces(data)
        if len(content) > _PUT_LIMIT:
            raise LimitError(f"{where(self.url, name)}: {len(content)} bytes are too many to replace an object of S3")
        self._call(name, lambda fs, _: self._require_conditions(fs))
        try:
            return self._put(name, content, IfMatch=expected)
        except FileNotFoundError:
            raise conflict(where(self.url, name)) from None

    def _put(self, name: str, content: bytes, **options: Any) -> Stamp:
        def pipe(fs: Any, path: str) -> Any:
            # If s3fs split the upload, it would drop the condition.
            return fs.pipe_file(path, content, **options, **({"chunksize": _PUT_LIMIT} if "IfMatch" in options else {}))

        response = self._call(name, pipe)
        return self.stamp(name) if response is None else Stamp(len(content), response["ETag"])

    def _put_parts(self, name: str, parts: Iterator[bytes], *, exclusive: bool) -> Stamp:
        started, _ = self._request(name, "create_multipart_upload")
        ident, nbytes = {"UploadId": started["UploadId"]}, 0

        def send(number: int, part: bytes) -> dict[str, Any]:
            sent, _ = self._request(name, "upload_part", PartNumber=number, Body=part, **ident)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        try:
            sent: list[dict[str, Any]] = []
            with ThreadPoolExecutor(_UPLOADS) as threads:
                while some := list(itertools.islice(parts, _UPLOADS)):
                    sent += threads.map(send, itertools.count(len(sent) + 1), some)
                    nbytes += sum(map(len, some))
                    some.clear()  # frees them before the next ones are made
            condition = {"IfNoneMatch": "*"} if exclusive else {}
            done, _ = self._request(
                name, "complete_multipart_upload", MultipartUpload={"Parts": sent}, **ident, **condition
            )
        except BaseException:
            with suppress(Exception):  # a rule of the bucket removes parts that stay behind
                self._request(name, "abort_multipart_upload", **ident)
            raise
        self._call(name, lambda fs, path: fs.invalidate_cache(path))
        return Stamp(nbytes, done["ETag"])

    def delete(self, names: Iterable[str]) -> None:
        self._call("", lambda fs, root: _delete(fs, [join(root, name) for name in names]))


def _delete(fs: Any, paths: Sequence[str]) -> None:
    for start in range(0, len(paths), _DELETE_LIMIT):
        located = [fs.split_path(path) for path in paths[start : start + _DELETE_LIMIT]]
        keys = {"Objects": [{"Key": key} for _, key, _ in located], "Quiet": True}
        for failed in fs.call_s3("delete_objects", Bucket=located[0][0], Delete=keys).get("Errors", []):
            raise OSError(f"cannot delete {failed.get('Key')}: {failed.get('Message')}")


def _plain(value: object) -> bool:
    """Whether equal texts of values mean equal values."""
    if isinstance(value, dict):
        return _plain([*value, *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return type(value) in (str, bytes, bool, int, float, NoneType)
