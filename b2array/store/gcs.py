"""Stores on Google Cloud Storage: ``ifGenerationMatch``. The version of an object is its generation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC
from functools import partial
from typing import Any

from b2array import config
from b2array.store import ranges
from b2array.store.base import Stamp, Version
from b2array.store.cloud import ABSENT, CloudStore, UploadPart, remove_each
from b2array.store.remote import bytes_range

__all__ = ["GcsStore"]

_OBJECT = "b/{}/o/{}"
_BYTES = {"Content-Type": "application/octet-stream"}
_CLASSES = ("gcsfs.core.GCSFileSystem", "gcsfs.extended_gcsfs.ExtendedGcsFileSystem")
_PERSISTED = re.compile(r"bytes=0-(\d+)")


class GcsStore(CloudStore):
    """An object or prefix in a bucket of Google Cloud Storage."""

    put_limit = 5 * 2**40
    _serves_ends = True
    uploads = 1  # a resumable upload accepts one part after the other

    @property
    def connections(self) -> int:
        """The number of concurrent requests, which the client allows."""
        return 32

    def _find_place(self, fs: Any, root: str) -> str:
        return f"{fs._location}/{root}"

    async def _settings(self, fs: Any) -> ranges.Client | None:
        if ranges.name_of(fs) not in _CLASSES or getattr(fs, "_use_client_cert", False):
            return None
        if fs.requester_pays or fs.session_kwargs or fs.version_aware:
            return None
        if fs.timeout or fs.requests_timeout:
            return None
        if getattr(fs.credentials.credentials, "quota_project_id", None):  # it is billed, by another header
            return None
        is_anonymous = fs.credentials.credentials is None
        options: dict[str, Any] = {"base_url": fs._location, "skip_signature": is_anonymous}
        if not is_anonymous:
            options["credential_provider"] = partial(_token, fs.credentials)
        return ranges.Client(partial(ranges.cloud_store, "GCSStore", options), tag="version", conditional=False)

    async def _get(
        self,
        fs: Any,
        path: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        asked = {"alt": "media", "headers": {"Range": bytes_range(start, stop)}, **_condition(expected)}
        headers, content = await fs._call(
            "GET",
            _OBJECT,
            *_place(fs, path),
            **asked,
            **_generation(fs, path),
        )
        size = headers.get("Content-Range", "").rpartition("/")[2] or len(content)
        return content, Stamp(int(size), Version(headers["X-Goog-Generation"]))

    async def _ask(self, fs: Any, path: str) -> Stamp:
        asked = {"fields": "size,generation", "json_out": True, **_generation(fs, path)}
        answer = await fs._call("GET", _OBJECT, *_place(fs, path), **asked)
        return Stamp(int(answer["size"]), Version(answer["generation"]))

    async def _list_one(self, fs: Any, path: str) -> None:
        bucket, key = _place(fs, path)
        await fs._call("GET", "b/{}/o", bucket, prefix=key, maxResults=1)

    async def _send(
        self,
        fs: Any,
        path: str,
        content: bytes,
        expected: Version | None,
    ) -> Version:
        bucket, key = _place(fs, path)
        asked = {"uploadType": "media", "name": key, "headers": _BYTES, "json_out": True, **_condition(expected)}
        answer = await fs._call("POST", _uploads(fs), bucket, data=content, **asked)
        return Version(answer["generation"])

    async def _begin(self, fs: Any, path: str, expected: Version | None) -> str:
        bucket, key = _place(fs, path)
        asked = {"uploadType": "resumable", "name": key, **_condition(expected)}
        headers, _ = await fs._call("POST", _uploads(fs), bucket, **asked)
        return str(headers["Location"])

    async def _send_part(self, fs: Any, path: str, begun: str, part: UploadPart) -> str:
        total = "*" if part.total is None else part.total
        start, stalled = part.start, 0
        while True:
            what = f"bytes {start}-{part.stop - 1}/{total}"
            asked = {"headers": {**_BYTES, "Content-Range": what}, "data": part.content[start - part.start :]}
            headers, answer = await fs._call("PUT", begun, **asked)
            if part.total is not None and "Range" not in headers:
                return str(json.loads(answer)["generation"])
            persisted = _PERSISTED.fullmatch(headers.get("Range", ""))
            before, start = start, int(persisted[1]) + 1 if persisted else 0
            if start == part.stop:
                return ""
            stalled = stalled + 1 if start == before else 0
            if not part.start <= start < part.stop or stalled > config.retries:
                raise OSError(f"expected an upload to continue after byte {part.start}, found {start} bytes stored")

    async def _finish(
        self,
        fs: Any,
        path: str,
        begun: str,
        sent: list[str],
        expected: Version | None,
    ) -> Version:
        return Version(sent[-1])

    async def _abort(self, fs: Any, path: str, begun: str) -> None:
        await fs._call("DELETE", re.sub("&ifGenerationMatch=[0-9]+", "", begun))

    async def _remove(self, fs: Any, paths: Sequence[str]) -> None:
        await remove_each(fs._call("DELETE", _OBJECT, *_place(fs, path)) for path in paths)


def _token(credentials: Any) -> dict[str, Any]:
    """Return the token that gcsfs sends, and its expiry time."""
    credentials.maybe_refresh()
    expiry = credentials.credentials.expiry
    return {"token": credentials.credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}


def _uploads(fs: Any) -> str:
    return f"{fs._location}/upload/storage/v1/b/{{}}/o"


def _place(fs: Any, path: str) -> tuple[str, str]:
    return fs.split_path(path)[:2]  # type: ignore[no-any-return]


def _generation(fs: Any, path: str) -> dict[str, str]:
    generation = fs.split_path(path)[2]
    return {} if generation is None else {"generation": generation}


def _condition(expected: Version | None) -> dict[str, str]:
    if expected is None:
        return {}
    return {"ifGenerationMatch": "0" if expected == ABSENT else expected.tag}
