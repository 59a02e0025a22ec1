"""Stores on Azure Blob Storage: ``If-Match`` and ``If-None-Match``."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from b2array.store import ranges
from b2array.store.base import Stamp, Version, conflict, where
from b2array.store.cloud import ABSENT, CloudStore, UploadPart, remove_each
from b2array.store.remote import answer

__all__ = ["AzureStore"]

_EXISTS = "BlobAlreadyExists"


class AzureStore(CloudStore):
    """A blob, or the blobs with a prefix, in a container of Azure."""

    put_limit = 5000 * 2**20

    @property
    def connections(self) -> int:
        """The number of concurrent requests, which the client allows."""
        return 32

    def _find_place(self, fs: Any, root: str) -> str:
        endpoint, _, _ = fs.service_client.url.partition("?")
        return f"{endpoint}/{root}"

    async def _settings(self, fs: Any) -> ranges.Client | None:
        if ranges.name_of(fs) != "adlfs.spec.AzureBlobFileSystem" or fs.location_mode != "primary":
            return None
        if fs.version_aware or fs._timeout_kwargs:
            return None
        service = fs.service_client
        endpoint, _, query = service.url.partition("?")
        options: dict[str, Any] = {"endpoint": endpoint.rstrip("/"), "account_name": service.account_name}
        options["skip_signature"] = service.credential is None and not query
        key = getattr(service.credential, "account_key", None)
        if query:
            options["credential_provider"] = lambda: {"sas_token": query, "expires_at": None}
        elif key is not None:
            options["credential_provider"] = lambda: {"access_key": key, "expires_at": None}
        elif service.credential is not None:
            options["credential_provider"] = partial(_token, fs.loop, service.credential)
        return ranges.Client(partial(ranges.cloud_store, "AzureStore", options))

    def _is_busy(self, error: Exception) -> bool:
        return super()._is_busy(error) and getattr(error, "error_code", None) != _EXISTS

    def _translate(self, error: Exception, name: str) -> Exception:
        # When a writer completes a blob, Azure discards the parts that other writers have sent for it.
        if getattr(error, "error_code", None) in (_EXISTS, "InvalidBlockList"):
            return conflict(where(self.url, name))
        return super()._translate(error, name)

    async def _get(
        self,
        fs: Any,
        path: str,
        start: int,
        stop: int,
        expected: Version | None,
    ) -> tuple[bytes, Stamp]:
        container, key, version = fs.split_path(path)
        asked = {"offset": start, "length": stop - start, "version_id": version, **_condition(expected)}
        async with fs.service_client.get_blob_client(container, key) as blob:
            stream = await blob.download_blob(**asked, **fs._timeout_kwargs)
            content = await stream.readall()
        size = stream.properties.content_range.rpartition("/")[2]
        return content, Stamp(int(size), Version(stream.properties.etag))

    async def _ask(self, fs: Any, path: str) -> Stamp:
        container, key, version = fs.split_path(path)
        async with fs.service_client.get_blob_client(container, key) as blob:
            properties = await blob.get_blob_properties(version_id=version, **fs._timeout_kwargs)
        return Stamp(properties.size, Version(properties.etag))

    async def _send(
        self,
        fs: Any,
        path: str,
        content: bytes,
        expected: Version | None,
    ) -> Version:
        from azure.core.exceptions import ResourceExistsError

        async with _blob(fs, path) as blob:
            try:
                answer = await blob.upload_blob(
                    content,
                    overwrite=True,
                    max_concurrency=self.uploads,
                    **_condition(expected),
                    **fs._timeout_kwargs,
                )
            except ResourceExistsError:
                # The parts of an unfinished upload may count as a blob, but do not prevent an upload from completing.
                if expected != ABSENT or await blob.exists(**fs._timeout_kwargs):
                    raise
                begun = await self._begin(fs, path, expected)
                part = await self._send_part(
                    fs,
                    path,
                    begun,
                    UploadPart(0, 0, content, len(content)),
                )
                return await self._finish(fs, path, begun, [part], expected)
        return Version(answer["etag"])

    async def _begin(self, fs: Any, path: str, expected: Version | None) -> str:
        return os.urandom(8).hex()

    async def _send_part(self, fs: Any, path: str, begun: str, part: UploadPart) -> str:
        ident = base64.b64encode(f"{begun}{part.number:08}".encode()).decode()
        async with _blob(fs, path) as blob:
            await blob.stage_block(ident, part.content, **fs._timeout_kwargs)
        return ident

    async def _finish(
        self,
        fs: Any,
        path: str,
        begun: str,
        sent: list[str],
        expected: Version | None,
    ) -> Version:
        from azure.storage.blob import BlobBlock

        async with _blob(fs, path) as blob:
            answer = await blob.commit_block_list(
                [BlobBlock(ident) for ident in sent],
                **_condition(expected),
                **fs._timeout_kwargs,
            )
        return Version(answer["etag"])

    async def _abort(self, fs: Any, path: str, begun: str) -> None:
        """Do nothing: Azure drops the parts after a week."""

    async def _remove(self, fs: Any, paths: Sequence[str]) -> None:
        async def remove(path: str) -> None:
            async with _blob(fs, path) as blob:
                await blob.delete_blob(**fs._timeout_kwargs)

        await remove_each(map(remove, paths))


def _token(loop: Any, credential: Any) -> dict[str, Any]:
    """Return a token for storage, and its expiry time."""
    token = answer(loop, partial(credential.get_token, "https://storage.azure.com/.default"))
    return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}


def _blob(fs: Any, path: str) -> Any:
    return fs.service_client.get_blob_client(*fs.split_path(path)[:2])


def _condition(expected: Version | None) -> dict[str, Any]:
    from azure.core import MatchConditions

    if expected is None:
        return {}
    if expected == ABSENT:
        return {"match_condition": MatchConditions.IfMissing}
    return {"match_condition": MatchConditions.IfNotModified, "etag": expected.tag}
