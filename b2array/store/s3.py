"""Stores on S3 and on servers with its protocol: ``If-Match`` and ``If-None-Match``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from b2array.errors import UnsupportedError
from b2array.store import ranges
from b2array.store.base import Stamp, Version, where
from b2array.store.cloud import ABSENT, CloudStore, UploadPart
from b2array.store.file_systems import FILE_SYSTEM
from b2array.store.remote import answer, bytes_range

__all__ = ["S3Store"]

_FEW, _MANY = 10, 50
"""The default number of connections of an S3 client, and the number that the store requests before it connects."""
_CLIENT_OPTIONS = {
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "endpoint_url",
    "region_name",
}
_DELETE_LIMIT = 1000  # keys that one request can delete


class S3Store(CloudStore):
    """An object or prefix in a bucket of S3, or of another server that honours ``If-Match``."""

    put_limit = 5 * 2**30
    _serves_ends = True

    @property
    def connections(self) -> int:
        """The number of concurrent requests: fewer than the client's connections, so that none waits for another."""
        setting = self._call("", lambda fs, _: fs.config_kwargs.get("max_pool_connections"))
        return max(1, int(setting or _FEW) - 2)

    def _connect(self) -> tuple[Any, str]:
        fs, root = super()._connect()
        # Do not change the user's file system: it may be in use already, with its connections and cached listings.
        if fs._s3 is None and FILE_SYSTEM not in self._options:
            fs.config_kwargs = {"max_pool_connections": _MANY, **fs.config_kwargs}
        return fs, root

    def _find_place(self, fs: Any, root: str) -> str:
        client = answer(fs.loop, fs.set_session)
        return f"{client.meta.endpoint_url}/{root}"

    async def _settings(self, fs: Any) -> ranges.Client | None:
        unusual = fs.version_aware or fs.s3_additional_kwargs or fs.cache_regions
        translatable = {*fs.client_kwargs} <= _CLIENT_OPTIONS and {*fs.config_kwargs} <= {"max_pool_connections"}
        if ranges.name_of(fs) != "s3fs.core.S3FileSystem" or unusual or not translatable:
            return None
        client = await fs.set_session()
        meta = client.meta
        configuration = meta.config
        named = os.environ.get("AWS_ENDPOINT_URL_S3", meta.endpoint_url)
        if configuration.s3 or configuration.proxies or named != meta.endpoint_url:
            return None
        if configuration.use_fips_endpoint or configuration.use_dualstack_endpoint or _has_keys_of_objects():
            return None
        region = "us-east-1" if meta.region_name in (None, "aws-global") else meta.region_name
        options: dict[str, Any] = {
            "endpoint": meta.endpoint_url,
            "region": region,
            "request_payer": bool(fs.requester_pays),
            "s3_express": False,
            "skip_signature": bool(fs.anon),
            "virtual_hosted_style_request": False,
        }
        if not fs.anon:
            options["credential_provider"] = await _credentials(fs)
        return ranges.Client(partial(ranges.cloud_store, "S3Store", options))

    def _translate(self, error: Exception, name: str) -> Exception:
        if _code(error) == "NoSuchBucket":
            fs, root = self._connect()
            missing = f"there is no bucket {fs.split_path(root)[0]!r}"
            return FileNotFoundError(errno.ENOENT, missing, where(self.url, name))
        return super()._translate(error, name)

    async def _get(
        self,
        fs: Any,
        path: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        from s3fs.core import _error_wrapper

        condition = {} if expected is None else {"IfMatch": expected.tag}

        async def read() -> tuple[Any, bytes]:
            answer = await fs._call_s3(
                "get_object",
                **_place(fs, path),
                Range=bytes_range(start, stop),
                **condition,
            )
            async with answer["Body"] as body:
                return answer, await body.read()

        answer, content = await _error_wrapper(read, retries=fs.retries)
        size = answer.get("ContentRange", "").rpartition("/")[2] or answer["ContentLength"]
        return content, Stamp(int(size), Version(answer["ETag"]))

    async def _ask(self, fs: Any, path: str) -> Stamp:
        answer = await fs._call_s3("head_object", **_place(fs, path))
        return Stamp(answer["ContentLength"], Version(answer["ETag"]))

    async def _list_one(self, fs: Any, path: str) -> None:
        bucket, key, _ = fs.split_path(path)
        await fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=key, MaxKeys=1)

    async def _send(
        self,
        fs: Any,
        path: str,
        content: bytes,
        expected: Version | None,
    ) -> Version:
        # With a smaller chunk size, s3fs would split the upload and drop the condition.
        answer = await fs._pipe_file(
            path,
            content,
            chunksize=self.put_limit,
            **await _condition(fs, expected),
        )
        return Version(answer["ETag"])

    async def _begin(self, fs: Any, path: str, expected: Version | None) -> Any:
        await _condition(fs, expected)
        answer = await fs._call_s3("create_multipart_upload", **_place(fs, path))
        return {"UploadId": answer["UploadId"]}

    async def _send_part(self, fs: Any, path: str, begun: Any, part: UploadPart) -> Any:
        number = {"PartNumber": part.number + 1}
        answer = await fs._call_s3(
            "upload_part",
            **_place(fs, path),
            **begun,
            **number,
            Body=part.content,
        )
        return {**number, "ETag": answer["ETag"]}

    async def _finish(
        self,
        fs: Any,
        path: str,
        begun: Any,
        sent: list[Any],
        expected: Version | None,
    ) -> Version:
        condition = await _condition(fs, expected)
        parts = {"MultipartUpload": {"Parts": sent}}
        answer = await fs._call_s3(
            "complete_multipart_upload",
            **_place(fs, path),
            **begun,
            **parts,
            **condition,
        )
        return Version(answer["ETag"])

    async def _abort(self, fs: Any, path: str, begun: Any) -> None:
        await fs._call_s3("abort_multipart_upload", **_place(fs, path), **begun)

    async def _remove(self, fs: Any, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _DELETE_LIMIT):
            places = [_place(fs, path) for path in paths[start : start + _DELETE_LIMIT]]
            keys = {"Objects": [{"Key": place["Key"]} for place in places], "Quiet": True}
            answer = await fs._call_s3("delete_objects", Bucket=places[0]["Bucket"], Delete=keys)
            for failed in answer.get("Errors", []):
                raise OSError(f"cannot delete {failed.get('Key')}: {failed.get('Message')}")


def _has_keys_of_objects() -> bool:
    """Return whether the environment has keys with which obstore would ask S3 to decrypt objects."""
    return any(name.startswith("AWS_SSE_") for name in os.environ)


async def _credentials(fs: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that returns the present credentials of a file system, in the form that obstore expects."""
    options = fs.client_kwargs
    key = fs.key or options.get("aws_access_key_id")
    secret = fs.secret or options.get("aws_secret_access_key")
    if key:
        token = fs.token or options.get("aws_session_token")
        keys = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
        return lambda: keys
    credentials = await fs.session.get_credentials()

    def ask() -> dict[str, Any]:
        frozen = answer(fs.loop, credentials.get_frozen_credentials)
        # botocore renews credentials early enough, so that they are valid for at least ten more minutes.
        soon = datetime.now(UTC) + timedelta(minutes=10)
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key, "token": frozen.token}
        return {**keys, "expires_at": soon}

    if credentials is None:
        raise ValueError("expected credentials of the session, found none")
    return ask


def _code(error: Exception) -> object:
    """Return the code of an S3 error, which is the cause of the error that s3fs raises."""
    answer = getattr(error.__cause__, "response", None)
    return answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None


def _place(fs: Any, path: str) -> dict[str, Any]:
    bucket, key, version = fs.split_path(path)
    return {"Bucket": bucket, "Key": key, **({} if version is None else {"VersionId": version})}


async def _condition(fs: Any, expected: Version | None) -> dict[str, str]:
    if expected is None:
        return {}
    await fs.set_session()
    model = fs.s3.meta.service_model
    shapes = (model.operation_model(name).input_shape.members for name in ("PutObject", "CompleteMultipartUpload"))
    if not all({"IfMatch", "IfNoneMatch"} <= members.keys() for members in shapes):
        raise UnsupportedError("safe writing to S3 needs botocore 1.35.70 or later")
    return {"IfNoneMatch": "*"} if expected == ABSENT else {"IfMatch": expected.tag}
